// Finds stop strings in text that comes token by token. LibTorch-free.
#pragma once

#include "core/tokenizer/tokenizer.h"
#include "rollout/stop_watcher.h"

namespace quartet {

// Watchers that read with `tokenizer`, which outlives them; special tokens have no text. Bytes that are not yet a whole
// character wait for the next token. The work for a token does not grow with the text.
StopWatcherFactory WatchWith(const Tokenizer& tokenizer);

}  // namespace quartet
