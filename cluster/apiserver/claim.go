package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
)

// versionKey is where the store says which version wrote it last. It is apart from the keys of objects.
const versionKey = "/coracle/version"

// versionLimit bounds reading and writing it.
const versionLimit = 10 * time.Second

// claim refuses a store that a newer minor version has written, and writes down that this one does from now on.
func (s *store) claim(ctx context.Context, own dataversion.Versions) error {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	found, err := s.probe.Get(ctx, versionKey)
	if err != nil {
		return fmt.Errorf("read which version wrote the cluster's data: %w", err)
	}
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	revision := int64(0)
	if len(found.Kvs) > 0 {
		var wrote dataversion.Versions
		if err := json.Unmarshal(found.Kvs[0].Value, &wrote); err != nil {
			slog.Warn("etcd does not say which version wrote it", "key", versionKey, "err", err)
		}
		if err := own.CanRead(wrote); err != nil {
			return fmt.Errorf("%w; install that version again, or go back to a snapshot of before the upgrade: 'coracle snapshot restore FILE'", err)
		}
		if string(found.Kvs[0].Value) == string(text) {
			return nil
		}
		revision = found.Kvs[0].ModRevision
	}
	_, err = s.probe.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(versionKey), "=", revision)).Then(clientv3.OpPut(versionKey, string(text))).Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) {
		slog.Warn("etcd is full: which version writes it is not noted", "key", versionKey)
		return nil
	}
	if err != nil {
		return fmt.Errorf("note which version writes the cluster's data: %w", err)
	}
	return nil
}
