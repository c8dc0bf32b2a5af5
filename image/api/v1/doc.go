// Package imagesv1 is the wire form of coracled's image service, which is served next to
// CRI on the daemon's socket. images.proto is its documentation; package imageapi
// serves it, `coracle image` is its client.
//
// The generated files are made again with `make generate`.
package imagesv1
