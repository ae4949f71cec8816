# What `cmake --install` puts where: headers, libraries, and what find_package(tern) and pkg-config need.
# A component that is a library of its own has its own targets file and its own pkg-config file, so that it can be
# packaged apart; find_package knows by them that it is there.
include(CMakePackageConfigHelpers)
set(tern_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tern)

# Relocatable: pkg-config starts from where it finds the file.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(tern_pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(tern_pc_libdir ${CMAKE_INSTALL_LIBDIR})
else()
  file(RELATIVE_PATH tern_pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" tern_pc_prefix "\${pcfiledir}/${tern_pc_up}")
  set(tern_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(tern_pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
else()
  set(tern_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()

# tern_install(target [COMPONENT name] DESCRIPTION text [REQUIRES packages] [LIBS flags]): the library, its targets file
# and its .pc file.
function(tern_install target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "COMPONENT;DESCRIPTION;REQUIRES;LIBS" "")
  set(pc_name tern)
  if(arg_COMPONENT)
    set(pc_name tern-${arg_COMPONENT})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_COMPONENT} INSTALL_RPATH "$ORIGIN")
  endif()
  install(TARGETS ${target} EXPORT ${pc_name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                              LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${pc_name} FILE ${pc_name}-targets.cmake NAMESPACE tern:: DESTINATION ${tern_package_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/tern.pc.in ${PROJECT_BINARY_DIR}/${pc_name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# A static library cannot say what it needs, so its user's command line must. Nobody links both kinds: only one is
# installed, which is why this is no matter for Libs.private.
if(NOT BUILD_SHARED_LIBS)
  set(tern_pc_libs "-lnuma -lsodium -pthread")
endif()
tern_install(tern DESCRIPTION ${PROJECT_DESCRIPTION} LIBS "${tern_pc_libs}")
tern_install(tern_faults COMPONENT faults DESCRIPTION "tern's endpoints over a bad network, for tests"
             REQUIRES "tern = ${PROJECT_VERSION}")
tern_install(tern_sim COMPONENT sim DESCRIPTION "A simulated datacenter for tern's endpoints, for tests"
             REQUIRES "tern = ${PROJECT_VERSION}")

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ternConfig.cmake.in ${PROJECT_BINARY_DIR}/ternConfig.cmake
                              INSTALL_DESTINATION ${tern_package_dir} NO_SET_AND_CHECK_MACRO)
# While the major version is 0, a minor version may break what was.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ternConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ternConfig.cmake ${PROJECT_BINARY_DIR}/ternConfigVersion.cmake
        DESTINATION ${tern_package_dir})
if(NOT BUILD_SHARED_LIBS)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindNUMA.cmake ${PROJECT_SOURCE_DIR}/cmake/FindSodium.cmake
          DESTINATION ${tern_package_dir})
endif()
