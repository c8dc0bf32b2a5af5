// Package nodev1 is the wire format of coracled's node service, which is served next to CRI on the
// daemon's socket. node.proto is its documentation. Package nodeapi serves it, and `coracle shim`
// is its client.
//
// Regenerate the generated files with `make generate`.
package nodev1
