# How tern's targets are made: one function for each kind.

# Sets the flags for all of tern's own code. They do not affect programs that use the library.
function(tern_set_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON UNITY_BUILD OFF)
  # A project that tern is a part of may be without exceptions. No fused multiply-add, because the simulator's traces must
  # be the same on every machine.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -fexceptions -ffp-contract=off)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
  if(TERN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:TERN_CHECKS_INVARIANTS>)
  if(TERN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TERN_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${TERN_SANITIZE}>)
    if(TERN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ warns at every fence that TSan does not see it. The warning is true and known: leases and the rings' sleep
      # protocol use fences between processes, where TSan sees nothing anyway.
      target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
  endif()
  if(TERN_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# Sets the flags for tern's programs in C, which use the C interface only.
function(tern_set_c_flags target)
  set_target_properties(${target} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -pedantic $<$<BOOL:${TERN_WERROR}>:-Werror>)
  if(TERN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TERN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)  # the C++ runtime has more, which the library needs
  endif()
endfunction()

# tern_add_library(name type source...): type "" follows BUILD_SHARED_LIBS. A static library is position-independent,
# too, because libtern_c.so and users' shared libraries contain it. This costs no instruction in a program: symbols are
# hidden or not interposable, and the linker removes the indirections of the others.
function(tern_add_library name type)
  add_library(${name} ${type} ${ARGN})
  tern_set_flags(${name})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${name} PRIVATE -fno-semantic-interposition)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                     PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC Threads::Threads PRIVATE NUMA::NUMA Sodium::Sodium)
endfunction()

# Sets the flags for the sources of tern's programs.
function(tern_set_program_flags target)
  tern_set_flags(${target})
  if(TERN_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)  # as for tests: sanitizers see the library as it is optimised
  endif()
  target_link_libraries(${target} PUBLIC gflags Threads::Threads)
endfunction()

# tern_add_program(name source...): adds an executable in the directory of the list file, as a part of the target
# `programs`.
function(tern_add_program name)
  add_executable(${name} ${ARGN})
  tern_set_program_flags(${name})
  if(TERN_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM program_common)
  endif()
  add_dependencies(programs ${name})
endfunction()

# tern_read_option(NAME result): sets result to AUTO, ON or OFF, from the value of the option NAME in any spelling of these.
function(tern_read_option name result)
  string(TOUPPER "${${name}}" value)
  if(value MATCHES "^([1-9][0-9]*|ON|YES|TRUE|Y)$")
    set(value ON)
  elseif(value MATCHES "^(0|OFF|NO|FALSE|N|)$")
    set(value OFF)
  elseif(NOT value STREQUAL "AUTO")
    message(FATAL_ERROR "${name} is '${${name}}': it must be ON, OFF or AUTO")
  endif()
  set(${result} ${value} PARENT_SCOPE)
endfunction()

# tern_resolve_option(NAME remedy need...): sets NAME_ENABLED from ON, OFF or AUTO, and looks for the needs: packages, and
# targets that the packages before them define.
function(tern_resolve_option name remedy)
  tern_read_option(${name} wanted)
  set(${name}_ENABLED OFF PARENT_SCOPE)
  if(wanted STREQUAL "AUTO")
    set(wanted ${TERN_IS_TOP_LEVEL})
  elseif(wanted)
    set(required ON)
  endif()
  if(NOT wanted)
    return()
  endif()
  foreach(need IN LISTS ARGN)
    if(NOT need MATCHES "::")
      find_package(${need} QUIET)
    endif()
    if(NOT ${need}_FOUND AND NOT TARGET ${need})
      if(required)
        message(FATAL_ERROR "${name}=ON needs ${need}: run ${remedy}")
      endif()
      message(STATUS "${name} are left out: ${need} is not installed (${remedy})")
      return()
    endif()
  endforeach()
  set(${name}_ENABLED ON PARENT_SCOPE)
endfunction()
