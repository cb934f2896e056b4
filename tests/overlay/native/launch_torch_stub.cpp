// A libtorch_cuda.so of one function: the current stream of device d is 0x5000 + d.
#include <cstdint>
#include <cstdlib>

extern "C" int aoti_torch_get_current_cuda_stream(std::int32_t device, void** stream) {
  *stream = reinterpret_cast<void*>(0x5000L + device);
  return std::getenv("DDTREE_STUB_NO_STREAM") == nullptr ? 0 : 1;
}
