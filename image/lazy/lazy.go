// Package lazy is how coracled has layers shown that are not here yet, by a process of its own
// (coracle-lazy): what is said between the two, and coracled's side of it.
//
// # What a lazy layer is
//
// An estargz layer has at its end a table of what is in it, and where. The process fetches the
// table, compares it with the digest that the manifest has for it, and mounts a FUSE file system of
// what it says. Files' contents come from the registry when they are read, each chunk compared with
// its digest in the table, while the whole blob is being fetched behind. When that is here, and its
// digest is right, coracled unpacks it into an ordinary layer and takes the mount out of use; roots
// that were made of the mount go on with it, and read from the unpacked files.
//
// # Life of a layer
//
//	c := lazy.NewClient(dir, start)
//	_ = c.Show(ctx, layer)          // mounted at layer.Dir/fs, or an error and nothing is left
//	_ = c.Await(ctx, diffID)        // the blob is whole: layer.Dir/blob
//	_ = c.Unpacked(ctx, diffID, fs) // here are the same files, unpacked
//
// A layer ends when nothing has its mount any more. That is told by the kernel, so that there is no
// call for it, and none that could be lost.
//
// # Who survives whom
//
// The keeper (shim/keeper) holds each layer's connection to the kernel, and what the process has to
// know of the layer, credentials included: in memory alone. When the process is killed, it is
// started again, takes both back and answers what was asked meanwhile. coracled may come and go.
package lazy

import (
	"errors"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/registry"
)

// Kinds of error, for errors.Is.
var (
	// ErrUnsuitable is a layer that cannot be shown like this, or not here; it has to be pulled.
	ErrUnsuitable = errors.New("layer cannot be pulled lazily")
	// ErrNotShown is a layer that the process does not have, or has no more.
	ErrNotShown = errors.New("layer is not shown lazily")
	// ErrInvalid is a blob that is not what its digest says.
	ErrInvalid = registry.ErrInvalid
	// ErrGone is a process that does not run.
	ErrGone = errors.New("coracle-lazy does not run")
)

// Names of a layer's two places in its directory, and of the socket in the process's.
const (
	FS         = "fs"
	Blob       = "blob"
	SocketName = "lazy.sock"
)

// Layer is one layer to be shown.
type Layer struct {
	DiffID digest.Digest `json:"diffID"`
	// Blob and Size are the manifest's of the layer, TOC its annotation TOCAnnotation.
	Blob digest.Digest `json:"blob"`
	Size int64         `json:"size"`
	TOC  digest.Digest `json:"toc"`
	// Image is whose layer it is, for messages.
	Image string `json:"image"`
	// Domain and Path name the repository; Auth is the pull's.
	Domain string          `json:"domain"`
	Path   string          `json:"path"`
	Auth   registry.Auth   `json:"auth"`
	Hosts  registry.Config `json:"hosts"`
	// Dir is the absolute path of a directory with FS, an empty one.
	Dir string `json:"dir"`
	// Timeout bounds how long a read may wait for the registry.
	Timeout time.Duration `json:"timeout"`
}

// TOCAnnotation is the annotation of an estargz layer's descriptor.
const TOCAnnotation = "containerd.io/snapshot/stargz/toc.digest"
