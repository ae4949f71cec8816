// Reads a file in the format of trace/dump.h.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "trace/record.h"

namespace tern::trace {

struct Dump {
  struct Ring {
    RingHeader header;
    std::vector<Record> records;
  };
  FileHeader header;
  std::string names;
  std::vector<Ring> rings;
  bool is_whole = false;  ///< true: the file has a header and all rings, and nothing follows them
};

inline Dump read_dump(const std::string& path) {
  Dump dump;
  std::ifstream file(path, std::ios::binary);
  const auto read = [&file](auto& to) {
    return static_cast<bool>(file.read(reinterpret_cast<char*>(&to), sizeof(to)));
  };
  if (!read(dump.header) || dump.header.magic != kMagic || dump.header.version != kVersion) return dump;
  dump.names.resize(dump.header.names_bytes);
  if (!file.read(dump.names.data(), static_cast<std::streamsize>(dump.names.size()))) return dump;
  for (uint32_t i = 0; i < dump.header.rings; i++) {
    Dump::Ring& ring = dump.rings.emplace_back();
    if (!read(ring.header)) return dump;
    uint32_t count = 0;
    while (read(count) && count != 0) {
      for (uint32_t k = 0; k < count; k++) {
        if (!read(ring.records.emplace_back())) return dump;
      }
    }
    if (!file) return dump;
  }
  dump.is_whole = file.peek() == std::ifstream::traits_type::eof();
  return dump;
}

}  // namespace tern::trace
