# libtern, its component libraries, and the files that `cmake --install` installs: headers, libraries, and the files
# that find_package(tern) and pkg-config need. A component has its own targets file and its own pkg-config file, so that
# it can be packaged separately. find_package recognises an installed component by these files.
include(CMakePackageConfigHelpers)
set(tern_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tern)

# The prefix is relocatable: pkg-config starts from the place of the .pc file.
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

# tern's programs and tests link tern_program_base: all libraries of the build, and the list of transports. They use
# symbols that a shared library hides; therefore they link static twins of shared libraries.
add_library(tern_program_base INTERFACE)
target_include_directories(tern_program_base INTERFACE ${PROJECT_BINARY_DIR}/generated)

# tern_add_core(source...): libtern, tern::tern.
function(tern_add_core)
  tern_add_library_and_twin(tern ${ARGN})
  if(TERN_PRECOMPILE)
    target_precompile_headers(tern PRIVATE <algorithm> <array> <atomic> <bit> <chrono> <cstring> <functional> <map>
                                           <memory> <optional> <span> <string> <string_view> <thread> <unordered_map>
                                           <vector>)
  endif()
  add_library(tern::tern ALIAS tern)
  if(TERN_INSTALL)
    # A static library cannot name the libraries that it needs, so the command line of its user must name them. They are
    # in Libs and not in Libs.private, because a prefix has either a static or a shared libtern.
    if(NOT BUILD_SHARED_LIBS)
      set(libs "-lnuma -lsodium -pthread")
    endif()
    tern_install_library(tern tern)
    tern_install_pc(tern DESCRIPTION ${PROJECT_DESCRIPTION} LIBS "-L\${libdir} -ltern ${libs}")
  endif()
endfunction()

# tern_add_component(NAME DESCRIPTION text [PACKAGES module...] [PARTS folder...] [SOURCES source...]): adds the library
# tern::NAME over libtern. It also needs these pkg-config modules (found by tern_find_packages(TERN_NAME ...)), and
# shares the code of these folders of src/ with other components.
function(tern_add_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESCRIPTION" "PACKAGES;PARTS;SOURCES")
  tern_add_library_and_twin(tern_${name} ${arg_SOURCES})
  add_library(tern::${name} ALIAS tern_${name})
  tern_link_parts(${name} ${arg_PARTS})
  target_link_libraries(tern_${name} PUBLIC tern)
  # Possible only with the same flags: position-independent code and some packages have other flags.
  if(TERN_PRECOMPILE AND NOT BUILD_SHARED_LIBS AND NOT TERN_${name}_CFLAGS_OTHER)
    target_precompile_headers(tern_${name} REUSE_FROM tern)
  endif()
  if(TARGET tern_${name}_internal)
    target_link_libraries(tern_${name}_internal PUBLIC tern_internal)
    set(internal _internal)
  endif()
  target_link_libraries(tern_program_base INTERFACE tern_${name}${internal})
  if(arg_PACKAGES)
    foreach(target IN ITEMS tern_${name} tern_${name}_internal)
      if(TARGET ${target})
        target_link_libraries(${target} PRIVATE PkgConfig::TERN_${name})
      endif()
    endforeach()
  endif()
  if(NOT TERN_INSTALL)
    if(NOT TERN_IS_TOP_LEVEL)
      set_target_properties(tern_${name} PROPERTIES EXCLUDE_FROM_ALL ON)  # built only for projects that link it
    endif()
    return()
  endif()
  set_target_properties(tern_${name} PROPERTIES EXPORT_NAME ${name} INSTALL_RPATH "$ORIGIN")
  tern_install_library(tern_${name} tern-${name})
  set(requires "tern = ${PROJECT_VERSION}")
  if(NOT BUILD_SHARED_LIBS)
    list(TRANSFORM arg_PARTS PREPEND " -ltern_" OUTPUT_VARIABLE part_libs)
    list(JOIN part_libs "" part_libs)
  endif()
  if(NOT BUILD_SHARED_LIBS AND arg_PACKAGES)
    # A module's compiler flags (-include, -march of libdpdk) are only for the component's own sources. `Requires` would
    # pass them to all users.
    if(TERN_${name}_CFLAGS_OTHER)
      list(JOIN TERN_${name}_LDFLAGS " " packages)
      string(APPEND part_libs " ${packages}")
    else()
      list(JOIN arg_PACKAGES ", " packages)
      string(APPEND requires ", ${packages}")
    endif()
    # The component's targets file names PkgConfig::TERN_NAME. The package configuration makes that target.
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tern-${name}-packages.cmake
         CONTENT "set(tern_packages @arg_PACKAGES@)\n" @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/tern-${name}-packages.cmake DESTINATION ${tern_package_dir})
  endif()
  tern_install_pc(tern-${name} DESCRIPTION ${arg_DESCRIPTION} REQUIRES "${requires}"
                  LIBS "-L\${libdir} -ltern_${name}${part_libs}")
endfunction()

# tern_add_sources(LIBRARY source...)
function(tern_add_sources library)
  foreach(target IN ITEMS ${library} ${library}_internal)
    if(TARGET ${target})
      target_sources(${target} PRIVATE ${ARGN})
    endif()
  endforeach()
endfunction()

# tern_add_public_headers(LIBRARY directory): adds a directory that has headers <tern/...>.
function(tern_add_public_headers library directory)
  foreach(target IN ITEMS ${library} ${library}_internal)
    if(TARGET ${target})
      target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${directory}>)
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TERN_PUBLIC_HEADERS ${directory})
  if(TERN_INSTALL)
    install(DIRECTORY ${directory}/tern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  endif()
endfunction()

# tern_add_alias(NAME description): declares that the component NAME is a part of libtern.
function(tern_add_alias name description)
  add_library(tern::${name} ALIAS tern)
  set_property(GLOBAL APPEND PROPERTY TERN_BUILT_IN ${name})
  if(TERN_INSTALL)
    tern_install_pc(tern-${name} DESCRIPTION ${description} REQUIRES "tern = ${PROJECT_VERSION}")
  endif()
endfunction()

# --- steps of the functions above ------------------------------------------------------------------------------------

# Adds the library. If it is shared, also adds NAME_internal with the same sources, which hides no symbols.
function(tern_add_library_and_twin name)
  tern_add_library(${name} "" ${ARGN})
  # While the major version is 0, a minor version may be incompatible.
  set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION}
                                           SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set_property(GLOBAL APPEND PROPERTY TERN_LIBRARIES ${name})
  if(BUILD_SHARED_LIBS)
    tern_add_library(${name}_internal STATIC ${ARGN})
    set_target_properties(${name}_internal PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# tern_link_parts(NAME folder...): makes the static library of each folder, unless another component has made it, and
# links tern_NAME and its twin with all of them. Therefore a program that links several components has one copy. A
# shared library contains the part and hides it.
function(tern_link_parts name)
  foreach(part IN LISTS ARGN)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${part}/*.cc)
    foreach(twin IN ITEMS "" _internal)
      if(NOT TARGET tern_${name}${twin})
        continue()
      endif()
      set(library tern_${part}${twin})
      if(NOT TARGET ${library})
        tern_add_library(${library} STATIC ${sources})
        set_target_properties(${library} PROPERTIES EXCLUDE_FROM_ALL ON EXPORT_NAME ${part} POSITION_INDEPENDENT_CODE ON)
        target_include_directories(${library} PRIVATE ${TERN_${name}_INCLUDE_DIRS})
        target_link_libraries(${library} PUBLIC tern${twin})
        if(TERN_INSTALL AND NOT BUILD_SHARED_LIBS)
          set_target_properties(${library} PROPERTIES EXCLUDE_FROM_ALL OFF)
          tern_install_library(${library} ternpart-${part})
        endif()
      endif()
      target_link_libraries(tern_${name}${twin} PRIVATE ${library})
    endforeach()
  endforeach()
endfunction()

function(tern_install_library target name)
  install(TARGETS ${target} EXPORT ${name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                           LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${name} FILE ${name}-targets.cmake NAMESPACE tern:: DESTINATION ${tern_package_dir})
endfunction()

# tern_install_pc(name DESCRIPTION text [REQUIRES modules] [LIBS flags])
function(tern_install_pc pc_name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESCRIPTION;REQUIRES;LIBS" "")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/tern.pc.in ${PROJECT_BINARY_DIR}/${pc_name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# tern_find_packages(PREFIX module...): sets PREFIX_FOUND, and makes the target PkgConfig::PREFIX for all modules
# together. Without modules PREFIX_FOUND is ON.
function(tern_find_packages prefix)
  set(${prefix}_FOUND ON)
  if(ARGN)
    set(${prefix}_FOUND OFF)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL ${ARGN})
    endif()
  endif()
  set(${prefix}_FOUND ${${prefix}_FOUND} PARENT_SCOPE)
endfunction()

# tern_install_package(): installs the files that belong to no library. Must be called after all components and
# transports.
function(tern_install_package)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tern)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
  # The installed tern-doctor finds its package by the way from its own folder.
  file(RELATIVE_PATH package ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/tern)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/doctor)
  file(READ ${PROJECT_SOURCE_DIR}/scripts/doctor doctor)
  string(REPLACE "'../share/tern'" "'${package}'" doctor "${doctor}")
  file(WRITE ${PROJECT_BINARY_DIR}/generated/tern-doctor "${doctor}")
  install(PROGRAMS ${PROJECT_BINARY_DIR}/generated/tern-doctor DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/scripts/tern_doctor DESTINATION ${CMAKE_INSTALL_DATADIR}/tern COMPONENT programs
          FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/scripts/wireshark DESTINATION ${CMAKE_INSTALL_DATADIR}/tern COMPONENT programs)
  get_property(tern_built_in GLOBAL PROPERTY TERN_BUILT_IN)
  get_property(transports GLOBAL PROPERTY TERN_TRANSPORTS)
  set(tern_left_out "")
  foreach(name IN LISTS transports)
    get_property(missing GLOBAL PROPERTY TERN_TRANSPORT_${name}_MISSING)
    if(missing)
      string(APPEND tern_left_out "set(tern_needs_${name} \"${missing}\")\n")
    endif()
  endforeach()
  # In a folder where find_package does not look, because a build directory is no installed package.
  set(folder ${PROJECT_BINARY_DIR}/generated/package)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ternConfig.cmake.in ${folder}/ternConfig.cmake
                                INSTALL_DESTINATION ${tern_package_dir} NO_SET_AND_CHECK_MACRO)
  # While the major version is 0, a minor version may be incompatible.
  write_basic_package_version_file(${folder}/ternConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${folder}/ternConfig.cmake ${folder}/ternConfigVersion.cmake DESTINATION ${tern_package_dir})
  file(REMOVE ${PROJECT_BINARY_DIR}/ternConfig.cmake)  # of an older build
  if(NOT BUILD_SHARED_LIBS)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindNUMA.cmake ${PROJECT_SOURCE_DIR}/cmake/FindSodium.cmake
            DESTINATION ${tern_package_dir})
  endif()
endfunction()
