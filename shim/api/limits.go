package api

// MinLogBytes is the least that CreateOptions.log_file_bytes may be, if it is not 0: what a shim
// writes to a log at once has to fit.
const MinLogBytes = 256 << 10
