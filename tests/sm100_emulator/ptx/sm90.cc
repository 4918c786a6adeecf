#include "decode.h"

namespace ptx {

void add_sm90(Table&) {}

}  // namespace ptx
