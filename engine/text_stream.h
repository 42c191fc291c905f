// A TextStream has the text of a sequence while its tokens come in: whole characters only, and never a part of a stop text.
#pragma once

#include <string>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer.h>

namespace prologue {

class TextStream {
 public:
  // The tokenizer and the stop texts must outlive the stream. No stop text is empty.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stop)
      : decoder_(tokenizer, /*continues_text=*/true), stop_(stop) {}

  // Takes the next token and returns the text that can be shown now. What may be the beginning of a stop text is kept for later. After
  // the stop text has come, stopped() is true, and the text that was returned ends before it.
  std::string push(int32_t token);
  // Ends the sequence and returns the rest. A stop text may show up here too.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  bool cut_at_stop();
  size_t held_back() const;
  std::string take(size_t count);

  StreamDecoder decoder_;
  const std::vector<std::string>& stop_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace prologue
