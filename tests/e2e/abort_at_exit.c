// For LD_PRELOAD: a server process that --processes has started is aborted at its end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((destructor)) static void abort_server(void) {
  char words[65536];
  FILE* file = fopen("/proc/self/cmdline", "r");
  if (file == NULL) return;
  const size_t bytes = fread(words, 1, sizeof words - 1, file);
  fclose(file);
  words[bytes] = '\0';
  for (const char* word = words; word < words + bytes; word += strlen(word) + 1) {
    if (strcmp(word, "--role=server") == 0) abort();
  }
}
