// Package rules holds the tests that keep the repository's shape: which package may
// import which, what the small long-lived binaries may not link, and which attacks have tests.
package rules
