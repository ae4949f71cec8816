// What the Thrift program of peers calls.
namespace cpp peers.thrift_idl

service Echo {
  // The response is how the request begins.
  binary call(1: binary request)
}
