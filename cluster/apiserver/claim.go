package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
)

// versionLimit bounds reading and writing it.
const versionLimit = 10 * time.Second

// claim refuses a store that a newer minor version has written, and writes down that this one does
// from now on.
func (s *store) claim(ctx context.Context, own dataversion.Versions) error {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	found, err := s.probe.Get(ctx, dataversion.Key)
	if errors.Is(err, rpctypes.ErrPermissionDenied) { // an etcd of others may give us no more than our objects
		s.log.Warn("etcd does not let us read which version wrote it", "key", dataversion.Key, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which version wrote the cluster's data: %w", err)
	}
	revision := int64(0)
	var before []byte
	if len(found.Kvs) > 0 {
		var wrote dataversion.Versions
		if err := json.Unmarshal(found.Kvs[0].Value, &wrote); err != nil {
			s.log.Warn("etcd does not say which version wrote it", "key", dataversion.Key, "err", err)
		}
		if err := own.CanRead(wrote); err != nil {
			return fmt.Errorf("%w; install that version again, or go back to a snapshot of before the upgrade: 'coracle snapshot restore FILE'", err)
		}
		if !dataversion.IsRelease(own.Coracle) && dataversion.IsRelease(wrote.Coracle) {
			own.Coracle = wrote.Coracle // a development build cannot be compared with, and the release can
		}
		before, revision = found.Kvs[0].Value, found.Kvs[0].ModRevision
	}
	text, err := json.Marshal(own)
	if err != nil || bytes.Equal(text, before) {
		return err
	}
	_, err = s.probe.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(dataversion.Key), "=", revision)).Then(clientv3.OpPut(dataversion.Key,
		string(text))).Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrPermissionDenied) {
		s.log.Warn("which version writes etcd is not noted", "key", dataversion.Key, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("note which version writes the cluster's data: %w", err)
	}
	return nil
}
