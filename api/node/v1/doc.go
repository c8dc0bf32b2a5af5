// Package nodev1 is the wire form of coracled's node service, which stands next to CRI on the
// daemon's socket. node.proto is its documentation; package nodeapi serves it, `coracle shim` is its
// client.
//
// The generated files are made again with `make generate`.
package nodev1
