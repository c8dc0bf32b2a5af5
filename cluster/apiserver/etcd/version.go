package etcd

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	etcdversion "go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// Version is etcd's.
var Version = etcdversion.Version

// ErrNewer is for data of a newer minor version, which this one may not even open: it would misread
// it. `coracle upgrade` looks for its text in the log.
var ErrNewer = errors.New("data of a newer version")

// CheckVersion says whether this etcd can read the database in the file db, without changing it.
func CheckVersion(db string) error { return opens(db) }

// notNewer says whether the version that wrote the database is at most this one's minor. etcd
// itself finds out only after it has started to use the data, and ends the process.
func notNewer(tx *bolt.Tx) error {
	for _, recorded := range [][]byte{
		field(tx, schema.Meta.Name(), schema.MetaStorageVersionName),
		field(tx, schema.Cluster.Name(), schema.ClusterClusterVersionKeyName),
	} {
		wrote, err := version.ParseGeneric(string(recorded))
		if err != nil {
			continue // releases before 3.6 do not write the first, nor does a new database
		}
		if newer(wrote, version.MustParseGeneric(Version)) {
			return fmt.Errorf("%w: etcd %d.%d wrote it, and this is etcd %s", ErrNewer, wrote.Major(), wrote.Minor(), Version)
		}
	}
	return nil
}

// Revisions are the last revision of an object in the database in the file db, and the last of all:
// what has been compacted away counts. The database must not be in use.
func Revisions(db string) (kept, last int64, err error) {
	err = inspect(db, false, func(tx *bolt.Tx) error {
		if b := tx.Bucket(schema.Key.Name()); b != nil {
			if key, _ := b.Cursor().Last(); key != nil {
				kept = mvcc.BytesToBucketKey(key).Main
			}
		}
		last = kept
		for _, name := range [][]byte{schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName} {
			if rev := field(tx, schema.Meta.Name(), name); rev != nil {
				last = max(last, mvcc.BytesToRev(rev).Main)
			}
		}
		return nil
	})
	return kept, last, err
}

func field(tx *bolt.Tx, bucket, key []byte) []byte {
	if b := tx.Bucket(bucket); b != nil {
		return b.Get(key)
	}
	return nil
}

// newer compares major and minor only.
func newer(a, b *version.Version) bool {
	return a.Major() > b.Major() || a.Major() == b.Major() && a.Minor() > b.Minor()
}
