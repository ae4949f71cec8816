// The direct verbs of libmlx5.so.1 over the software verbs provider. The provider's libibverbs.so.1 has the objects,
// and implements the functions.
#include <infiniband/mlx5dv.h>

extern "C" {
bool software_mlx5_is_supported(ibv_device* device);
int software_mlx5_query_device(ibv_context* context, mlx5dv_context* attr);
ibv_wq* software_mlx5_create_wq(ibv_context* context, ibv_wq_init_attr* init, mlx5dv_wq_init_attr* direct);
int software_mlx5_init_obj(mlx5dv_obj* objects, uint64_t types);

#pragma GCC visibility push(default)
bool mlx5dv_is_supported(ibv_device* device) { return software_mlx5_is_supported(device); }
int mlx5dv_query_device(ibv_context* context, mlx5dv_context* attr) {
  return software_mlx5_query_device(context, attr);
}
ibv_wq* mlx5dv_create_wq(ibv_context* context, ibv_wq_init_attr* init, mlx5dv_wq_init_attr* direct) {
  return software_mlx5_create_wq(context, init, direct);
}
int mlx5dv_init_obj(mlx5dv_obj* objects, uint64_t types) { return software_mlx5_init_obj(objects, types); }
#pragma GCC visibility pop
}
