// Package rules holds the tests that keep the repository's shape: which package may
// import which, and what the small long-lived binaries may not link.
package rules
