# What the Cap'n Proto program of peers calls.
@0xc2d5a1b7f3e94860;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("peers::capnp_idl");

interface Echo {
  # The response is how the request begins.
  call @0 (request :Data) -> (number :UInt64, slot :UInt64, size :UInt64, pattern :UInt64);
}
