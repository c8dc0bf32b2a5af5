// Package snapshot writes a cluster's data into one file, and puts it back: `coracle snapshot`.
//
// # What a snapshot has
//
// What cannot be made again: all objects, the key of the certificate authority and the key of
// service accounts. With these a restored cluster, also one with another directory or on another
// machine, accepts the tokens and client certificates that were handed out before. Certificates of
// servers and kubeconfigs are not in it: the next start makes them, for the addresses that it has.
// Nor are images, logs, volumes and the file of --encryption-provider-config, whose keys a restored
// cluster needs to read what it encrypted.
//
// The file is a tar archive, of mode 0600 since it has all keys and Secrets:
//
//	coracle-snapshot.json   Facts
//	etcd.db                 what `etcdctl snapshot save` writes
//	pki/ca.pem, pki/service-account.pem
//	sha256sums              of the files above, in the format of sha256sum
//
// # Restoring
//
// Everything is checked, and written below ROOT/restore.new, before any data of the cluster is
// touched. The rename to ROOT/restore is the moment that decides: a process killed before it leaves
// the old data, and one killed after it the new. What is left to do then, [Recover] does, at the
// next start of the cluster or the next restore: it moves the old data to ROOT/before-restore-TIME,
// where they stay until someone removes them, and the new ones to their place. At last
// ROOT/restored.json says what was restored: `coracle up` takes the settings over from it.
//
// The revision of etcd is raised above that of the data that are replaced, and all older ones count
// as compacted: a client that has seen more of the cluster than the snapshot has must not take what
// comes next for what it knows.
package snapshot

import (
	"errors"
	"time"
)

// Names inside an archive, in this order.
const (
	factsName    = "coracle-snapshot.json"
	databaseName = "etcd.db"
	sumsName     = "sha256sums"
)

// keys are the files of ROOT that belong to a snapshot besides etcd's.
var keys = []string{"pki/ca.pem", "pki/service-account.pem"}

// format is the version of the archive's layout.
const format = 1

// ErrDamaged is for a file that is no whole snapshot.
var ErrDamaged = errors.New("not a whole snapshot")

// Facts are what a snapshot says of itself.
type Facts struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	// Coracle, Kubernetes and Etcd are the versions that wrote the data.
	Coracle    string `json:"coracle,omitempty"`
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
	// Settings are flags of the cluster that its objects depend on, such as the network of
	// Services.
	Settings map[string]string `json:"settings,omitempty"`
	// Size is that of the whole file, in bytes; not in the archive itself.
	Size int64 `json:"size,omitempty"`
}

// Progress gets how many bytes are done, and of how many.
type Progress func(done, total int64)

// step is called between any two changes on disk, so that tests can end the process there.
var step = func(string) {}
