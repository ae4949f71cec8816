// The version of these headers. docs/stability.md lists the changes that a version may make. Macros only.
#pragma once

// NOLINTBEGIN(cppcoreguidelines-macro-usage): for #if
#define TERN_VERSION_MAJOR 0  ///< may break everything
#define TERN_VERSION_MINOR 1  ///< while the major version is 0, may break the items of docs/stability.md
#define TERN_VERSION_PATCH 0  ///< breaks nothing
/// For comparisons: #if TERN_VERSION >= TERN_MAKE_VERSION(0, 2, 0).
#define TERN_VERSION TERN_MAKE_VERSION(TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH)
/// Two digits each for the minor version and the patch.
#define TERN_MAKE_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
/// "MAJOR.MINOR.PATCH".
#define TERN_VERSION_TEXT "0.1.0"
// NOLINTEND(cppcoreguidelines-macro-usage)
