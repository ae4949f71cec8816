# What `cmake --install` puts where: headers, the library, and what find_package(tern) and pkg-config need.
include(CMakePackageConfigHelpers)
set(tern_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tern)

install(TARGETS tern EXPORT ternTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
install(EXPORT ternTargets NAMESPACE tern:: DESTINATION ${tern_package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ternConfig.cmake.in ${PROJECT_BINARY_DIR}/ternConfig.cmake
                              INSTALL_DESTINATION ${tern_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ternConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ternConfig.cmake ${PROJECT_BINARY_DIR}/ternConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindNUMA.cmake
        DESTINATION ${tern_package_dir})

if(NOT BUILD_SHARED_LIBS)
  set(tern_pc_libs " -lnuma -pthread")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tern.pc.in ${PROJECT_BINARY_DIR}/tern.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
