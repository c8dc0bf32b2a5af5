// Package rules holds the tests that keep the repository's shape: which package may
// import which, what the small long-lived binaries may not link, which attacks have tests, how long
// lines and functions may be, which parts get their loggers from their callers, how logs name
// errors, what ARCHITECTURE.md and README.md list, and how large files may be.
package rules
