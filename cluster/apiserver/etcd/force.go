package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/coracle-project/coracle/cluster/pki"
)

// CheckForce refuses to have the member with its data in dir go on without the others while they
// can go on together: there would be two clusters of one name. The caller has locked dir.
func CheckForce(ctx context.Context, dir string, files pki.EtcdFiles) error {
	p, err := ReadPeers(dir)
	if err != nil || p == nil {
		return err
	}
	others, err := p.others(dir)
	if err != nil {
		return err
	}
	answers := make([]bool, len(others))
	calls := newCaller(files.CACert, files.Pair)
	var asked sync.WaitGroup
	for i, m := range others {
		asked.Go(func() { answers[i] = calls.asks(ctx, m.URL) })
	}
	asked.Wait()
	var live []string
	for i, m := range others {
		if answers[i] {
			live = append(live, m.Name+" at "+m.URL)
		}
	}
	slices.Sort(live)
	voters := len(others) + 1
	quorum := voters/2 + 1
	switch answer := strings.Join(live, ", "); {
	case len(live) >= quorum:
		return fmt.Errorf("%d of %d control-plane nodes answer, and are a quorum without this one: %s; start this one as it is, with 'coracle up', or "+
			"have it join them again after 'coracle leave --force'", len(live), voters, answer)
	case len(live)+1 >= quorum && len(live) > 0:
		return fmt.Errorf("%s of the other control-plane nodes answers, and is a quorum together with this one: start this one as it is, with "+
			"'coracle up'; to go on without the other one, end it first, with 'coracle down' there", answer)
	}
	return nil
}

// others returns the other voters, as the database in dir has them. What was not written to it
// before a crash is a second old at most.
func (p *Peers) others(dir string) (all []Member, err error) {
	path := filepath.Join(dir, "etcd", "member", "snap", "db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has never been started
	case err != nil:
		return nil, fmt.Errorf("read etcd's members in %s: %w", path, err)
	default:
		defer func() { err = errors.Join(err, db.Close()) }()
		if all, err = p.othersIn(db); err != nil {
			return nil, fmt.Errorf("read etcd's members in %s: %w", path, err)
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	for name, url := range p.Cluster {
		if name != p.Name {
			all = append(all, Member{Name: name, URL: url})
		}
	}
	return all, nil
}

func (p *Peers) othersIn(db *bolt.DB) (all []Member, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(schema.Members.Name())
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, value []byte) error {
			var m membership.Member
			if err := json.Unmarshal(value, &m); err != nil {
				return err
			}
			if m.Name != p.Name && !m.IsLearner && len(m.PeerURLs) > 0 {
				all = append(all, Member{Name: m.Name, URL: m.PeerURLs[0]})
			}
			return nil
		})
	})
	return all, err
}
