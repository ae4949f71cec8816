# Defines libnuma as the target NUMA::NUMA. This file is also installed beside tern's package configuration.
find_path(NUMA_INCLUDE_DIR numa.h)
find_library(NUMA_LIBRARY numa)
mark_as_advanced(NUMA_INCLUDE_DIR NUMA_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NUMA REQUIRED_VARS NUMA_LIBRARY NUMA_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "libnuma's headers are not installed: run scripts/setup library, or install libnuma-dev")
if(NUMA_FOUND AND NOT TARGET NUMA::NUMA)
  add_library(NUMA::NUMA UNKNOWN IMPORTED)
  set_target_properties(NUMA::NUMA PROPERTIES IMPORTED_LOCATION ${NUMA_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${NUMA_INCLUDE_DIR})
endif()
