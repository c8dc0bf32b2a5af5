// Package peer passes layers of images between the nodes of a cluster, so that a registry sends
// each of them about once, however many nodes pull an image at the same time.
//
// # One pull
//
//	p := swarm.Pull("docker.io/library/busybox", blobs) // nil without other nodes
//	defer p.End()
//	for {
//		src, err := p.Next(ctx, blob)     // a node to fetch from, or nil: the registry
//		if src == nil && p.Claim(ctx, blob) { … the registry … }
//	}
//
// A node asks the others which of the blobs they have, which are arriving there, and which they
// want, too. What one of them has, or is receiving, is fetched from there while it arrives. Of the
// nodes that want a blob that none has, rendezvous hashing says which one asks the registry: the
// nodes share the blobs of an image out among themselves without electing anyone, and without
// another message. A node that waits too long for another takes its turn.
//
// # What is trusted
//
// Both sides show certificates of the cluster's authority, which name nodes, and each accepts only
// the nodes that it has been told of. What comes is compared
// with the blob's digest, or with the layer's (diff id), before it counts. A node serves a blob
// only for a repository of which it has, or is pulling, an image that lists the blob. That the
// asking node may read the repository is what the registry said when that node fetched the manifest
// there. The node that serves does not check that the blob came from the repository: an image can
// list a blob that the node has from another one.
//
// # Bounds
//
// A node that does not answer, stalls, drips or sends wrong bytes is left alone for a while, and
// the registry is asked instead. No failure here fails a pull.
package peer

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
)

// State is how far a node is with a blob. A node with a larger one is a better source.
type State int

// The states.
const (
	None      State = iota
	Wanted          // it is pulling an image with this blob, and has not begun to fetch it
	Unpacking       // it is receiving the layer's archive from a node that has it unpacked
	Arriving        // it is receiving it
	Unpacked        // it has the layer, and can make its archive again
	Whole           // it has the blob as registries have it
)

var stateNames = []string{"none", "wanted", "unpacking", "arriving", "unpacked", "whole"}

// String is the state's name on the wire.
func (s State) String() string { return stateNames[s] }

// isLayer says that the node can send the layer's archive, and not the blob.
func (s State) isLayer() bool { return s == Unpacking || s == Unpacked }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. A state that a later version may have is None.
func (s *State) UnmarshalText(text []byte) error {
	*s = None
	for i, name := range stateNames {
		if name == string(text) {
			*s = State(i)
		}
	}
	return nil
}

// Stock is what this node has of images. The image store is one. Blobs are looked for in the images
// of one repository only, those that are being pulled included.
type Stock interface {
	// State is one of all but Wanted.
	State(repository string, blob digest.Digest) State
	// OpenBlob reads a blob that is Whole or Arriving, in the second case as it arrives. Reading
	// fails if ctx ends or the rest never comes. Kind: ErrNone, which may pass: the blob is about to
	// arrive, or has just come.
	OpenBlob(ctx context.Context, repository string, blob digest.Digest) (r io.ReadCloser, size int64, err error)
	// WriteLayer writes the archive, not compressed, of the layer that a blob unpacks to, also while
	// that is Unpacking. When it knows the archive's size, it asks begin where to. It fails if ctx
	// ends or the rest never comes. Kind: ErrNone, and then begin was not called.
	WriteLayer(ctx context.Context, repository string, blob digest.Digest, begin func(size int64) io.Writer) error
}

// Kinds of error.
var (
	// ErrNone says that a blob is not here, or not for this repository.
	ErrNone = errors.New("no such blob here")
	// ErrPeer is any failure of another node. The blob can still come from others or the registry.
	ErrPeer = errors.New("other node failed")
	// errUnfit is an ErrPeer of a node that is not worth asking again soon.
	errUnfit = errors.New("unfit")
	// errBusy is an ErrPeer of a node that has too much to do.
	errBusy = errors.New("busy")
	// errLeftAlone is an ErrPeer of a node that is avoided: another blob waited for it in vain.
	errLeftAlone = errors.New("left alone")
)

// The bounds.
const (
	maxAsked     = 32 // nodes that each pull asks
	maxFound     = 32 // nodes that it asks because others have named them
	askRounds    = 3  // of a question: to those, to the nodes that they name, and to those that these name
	maxUploads   = 8  // blobs and layers that are sent at the same time
	minShare     = 2  // of maxUploads, for each node, however many nodes ask
	maxDownloads = 8  // that are fetched from other nodes at the same time
	maxFromOne   = 4  // of maxDownloads, from one node: one that is slow must not hold up all others
	maxConns     = 256
	// slowest is the bytes per second, on average, below which another node is not worth waiting
	// for. It is low: a node that passes on what it is receiving is as slow as the registry, which
	// is no faster if it is asked twice.
	slowest = 64 << 10
	// avoidFor is how long a node is not asked after it stalled or sent wrong bytes, awayFor after
	// it did not answer.
	avoidFor = time.Minute
	awayFor  = 30 * time.Second
	askLimit = 2 * time.Second  // of asking all nodes
	stall    = 10 * time.Second // see Swarm
	patience = 10 * time.Second // see Swarm
)

// maxTurns is how many nodes a blob waits for in vain, one after the other, before it waits for
// none.
const maxTurns = 3
