// A folder whose entries are read. Base layer; any thread, no state.
#pragma once

#include <dirent.h>

#include <memory>

namespace tern::base {

struct FolderCloser {
  void operator()(DIR* folder) const { closedir(folder); }
};
/// What opendir() gives, for readdir(). Null: there is no such folder, or it cannot be read.
using Folder = std::unique_ptr<DIR, FolderCloser>;

}  // namespace tern::base
