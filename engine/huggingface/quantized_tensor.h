// Reads quantised weights of Hugging Face checkpoints whose scales are tensors beside them: codes of 8 bits, value = code * scale.
//
//   quant_method in quantization_config   x.weight           its scales (float32, float16 or bfloat16)
//   fp8                                   F8_E4M3            x.weight_scale_inv or x.weight_scale
//   fbgemm_fp8                            F8_E4M3            x.weight_scale
//   compressed-tensors                    F8_E4M3 or I8      x.weight_scale
//
// The scales of a weight [n, k] are one for all ([], [1] or [1, 1]), one for each row ([n] or [n, 1]), or one for each 128 x 128 values
// ([ceil(n / 128), ceil(k / 128)]). Which tensors are quantised is what their types say, so lists of modules that are not converted need not
// be read. Scales of activations (x.input_scale, x.input_zero_point, x.output_scale) and of a KV cache (x.k_scale, x.v_scale, k_scale and
// v_scale of the attention) are recorded as belonging to the weight, and not applied.
//
// packed_int4.h, packed_mxfp4.h and checkpoint/nvfp4_weight.h read weights of 4 bits. NVFP4's are
//
//   compressed-tensors (nvfp4-pack-quantized)   x.weight_packed, x.weight_scale, x.weight_global_scale (F32), by which values are divided
//   modelopt (quant_algo NVFP4)                 x.weight (U8), x.weight_scale, x.weight_scale_2 (F32), by which values are multiplied
//
// The scale of the tensor is 1 / x.weight_global_scale, rounded to float32, or x.weight_scale_2. x.input_global_scale is not applied, either.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/gguf/ggml_type.h>
#include <prologue/engine/huggingface/json.h>
#include <prologue/engine/huggingface/packed_int4.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/weight_format.h>

namespace prologue {

enum class Nvfp4Method { none, compressed_tensors, modelopt };

// Says what config.json says about quantisation.
struct QuantizationConfig {
  bool has_float8 = false, has_int8 = false;  // tensors of type F8_E4M3 and I8 are quantised weights
  // Activations are float8, too, with scales computed from them: one for each token, or, where weights have 128 x 128 blocks, for each 128
  // channels of it. False: they have given scales, others, or none.
  bool quantizes_activations = false;
  Int4Config int4;
  Nvfp4Method nvfp4 = Nvfp4Method::none;
  bool has_mxfp4 = false;  // x_blocks and x_scales are weights of experts (packed_mxfp4.h)
};

// `config` is the value of quantization_config; null or an empty object: nothing is quantised. unsupported: another method, number of bits or shape
// of blocks; the message names it and what is supported. data_loss: a value has another type. `path` is for messages.
Result<QuantizationConfig> read_quantization_config(const Json* config, const std::string& path);
// The same for `quantization` of hf_quant_config.json, where older versions of ModelOpt write it instead.
Result<QuantizationConfig> read_modelopt_config(const Json* quantization, const std::string& path);

// A quantised weight [rows, cols]. As a tensor of a checkpoint it has the type `type`: blocks with their scale (GgmlType::f8_e4m3 and i8), if
// rows are whole blocks; float32 otherwise.
class QuantizedTensor {
 public:
  // Reads bytes [begin, begin + size) of the codes.
  using ReadCodes = std::function<Status(int64_t begin, int64_t size, void* out)>;

  // `scales` has the shape `scale_shape`. data_loss: the shape is none of those above, or a scale is not finite. `name` is the weight's, and
  // `scale_name` that of its scales; `path` is for messages.
  static Result<QuantizedTensor> create(const std::string& path, std::string_view name, bool is_float,
                                        const std::vector<int64_t>& shape, std::string_view scale_name,
                                        const std::vector<int64_t>& scale_shape, std::vector<float> scales);

  GgmlType type() const;
  int64_t size_bytes() const;
  // Which scales are equal, if the type is f8_e4m3; otherwise `blocks`.
  WeightScaling scaling() const;
  // Copies bytes [begin, begin + size) of the tensor of type type(). invalid_argument: the range is not within the data. data_loss: a code is NaN.
  Status read(int64_t begin, int64_t size, void* out, const ReadCodes& read_codes) const;

 private:
  float scale_at(int64_t element) const {
    return scales_[static_cast<size_t>(element / cols_ / rows_of_scale_ * scales_of_row_ + element % cols_ / cols_of_scale_)];
  }
  Status check_codes(const uint8_t* codes, int64_t first, int64_t count) const;

  std::string path_, name_;
  bool is_float_ = false;
  int64_t rows_ = 0, cols_ = 0;
  int64_t rows_of_scale_ = 1, cols_of_scale_ = 1, scales_of_row_ = 1;
  std::vector<float> scales_;
};

// Return the names that the scales of a weight may have, and those of the scales that are not applied. None if the name is not x.weight.
std::vector<std::string> scale_names(std::string_view weight);
std::vector<std::string> ignored_scale_names(std::string_view weight);

}  // namespace prologue
