// Package rules holds the tests that keep the repository's shape: which package may
// import which, what the small long-lived binaries may not link, which attacks have tests, and how
// long lines and functions may be.
package rules
