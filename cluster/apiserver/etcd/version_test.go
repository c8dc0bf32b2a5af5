package etcd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// Data of a newer minor version is not opened, and not changed.
func TestNewerData(t *testing.T) {
	for name, test := range map[string]struct {
		bucket, key []byte
		version     string
		newer       bool
	}{
		"storage, newer minor":       {schema.Meta.Name(), schema.MetaStorageVersionName, "3.7.0", true},
		"storage, newer major":       {schema.Meta.Name(), schema.MetaStorageVersionName, "4.0.0", true},
		"cluster, newer minor":       {schema.Cluster.Name(), schema.ClusterClusterVersionKeyName, "3.7.0", true},
		"cluster, newer major":       {schema.Cluster.Name(), schema.ClusterClusterVersionKeyName, "4.0.0", true},
		"storage, the same":          {schema.Meta.Name(), schema.MetaStorageVersionName, "3.6.0", false},
		"cluster, of an older minor": {schema.Cluster.Name(), schema.ClusterClusterVersionKeyName, "3.5.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			start(t, dir).Close()
			file := filepath.Join(dir, "etcd", "member", "snap", "db")
			db, err := bolt.Open(file, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(test.bucket).Put(test.key, []byte(test.version)) })
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Start(t.Context(), Options{Dir: dir, State: filepath.Join(dir, "run")})
			if err == nil {
				s.Close()
			}
			if !test.newer {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(CheckVersion(file), ErrNewer) {
				t.Error("the file is not called newer")
			}
			if err == nil || !strings.Contains(err.Error(), "data of a newer version: etcd "+test.version[:3]) ||
				!strings.Contains(err.Error(), "coracle snapshot restore") {
				t.Errorf("error %v", err)
			}
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed, %v", err)
			}
		})
	}
}
