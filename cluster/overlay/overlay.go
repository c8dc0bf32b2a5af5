// Package overlay connects the pods of different nodes: it decides from Node objects how each other
// node is reached, and package paths has the kernel do it.
package overlay
