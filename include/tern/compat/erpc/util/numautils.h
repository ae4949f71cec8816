// Programs written for eRPC: CPUs of a NUMA node. See docs/erpc-migration.md.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <charconv>
#include <fstream>
#include <thread>

#include "../common.h"
#include "autorun_helpers.h"

namespace erpc {

/// Returns the CPUs of a NUMA node that this process may use. On a machine without NUMA, node 0 has all CPUs.
inline std::vector<size_t> get_lcores_for_numa_node(size_t numa_node) {
  std::vector<size_t> cpus;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(numa_node) + "/cpulist");
  std::string list;
  if (!std::getline(file, list)) {
    if (numa_node != 0) return cpus;
    list = "0-" + std::to_string(CPU_SETSIZE - 1);
  }
  for (const std::string& range : split(list, ',')) {
    size_t first = 0, last = 0;
    const char* const end = range.data() + range.size();
    const auto parsed = std::from_chars(range.data(), end, first);
    last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') std::from_chars(parsed.ptr + 1, end, last);
    for (size_t cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) {
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
    }
  }
  return cpus;
}
inline size_t num_lcores_per_numa_node() { return get_lcores_for_numa_node(0).size(); }

/// Throws std::runtime_error if the node has no such CPU, or the system refuses.
inline void bind_to_core(std::thread& thread, size_t numa_node, size_t numa_local_index) {
  const auto cpus = get_lcores_for_numa_node(numa_node);
  rt_assert(numa_local_index < cpus.size(), "NUMA node " + std::to_string(numa_node) + " has no CPU " +
                                                std::to_string(numa_local_index) + " that this process may use");
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus[numa_local_index], &set);
  rt_assert(pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) == 0, "Failed to bind a thread to a CPU");
}
/// Lets the calling thread run on all CPUs again.
inline void clear_affinity_for_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace erpc
