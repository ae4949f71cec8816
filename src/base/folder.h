// An owner of an open directory. Base layer; any thread, no state.
#pragma once

#include <dirent.h>

#include <memory>

namespace tern::base {

struct FolderCloser {
  void operator()(DIR* folder) const { closedir(folder); }
};
/// The result of opendir(), for readdir(). Null: the directory does not exist, or cannot be read.
using Folder = std::unique_ptr<DIR, FolderCloser>;

}  // namespace tern::base
