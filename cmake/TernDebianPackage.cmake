# `cpack` in the build directory makes one .deb of all files that `cmake --install` installs, under /usr: headers,
# libraries, the files that find_package and pkg-config need, and the programs. Needs dpkg-dev, which finds the packages
# of shared libraries.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tern)
set(CPACK_PACKAGE_CONTACT "the maintainers of tern")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# tern-doctor is a Python program. The libraries that a static libtern needs are listed by hand, because a static
# library cannot name them; the packages that programs need are found by dpkg-dev.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "python3")
if(NOT BUILD_SHARED_LIBS)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libnuma-dev, libsodium-dev")
  # A program needs the packages of those optional transports only that it links, and pkg-config, which finds them.
  get_property(tern_debian_packages GLOBAL PROPERTY TERN_DEBIAN_PACKAGES)
  if(tern_debian_packages)
    list(REMOVE_DUPLICATES tern_debian_packages)
    list(JOIN tern_debian_packages ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
    string(APPEND CPACK_DEBIAN_PACKAGE_SUGGESTS ", pkg-config")
  endif()
endif()
include(CPack)
