package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"golang.org/x/sys/unix"
)

const (
	// forceAsks is how often a silent machine is asked, forcePause the time between: its process may
	// be starting again.
	forceAsks  = 3
	forcePause = 500 * time.Millisecond
	// forceLimit is how long one call may take. It is longer than connecting and the handshake, so
	// that a slow machine does not look like one that is gone.
	forceLimit = 5 * time.Second
)

// othersRunError says that other control-plane nodes run the cluster, or may.
type othersRunError string

func (e othersRunError) Error() string { return string(e) }

// CheckForce refuses to have the member with its data in o.Dir go on without the others while they
// can go on together, or one of them has gone on alone: there would be two clusters of one name.
// Only a machine that refuses connections, or that cannot be reached, counts as gone. Of o it needs
// Dir and what names credentials and the API's port. The caller has locked the directory.
func CheckForce(ctx context.Context, o Options) error {
	others, found, err := lookAtOthers(ctx, o)
	if err != nil {
		return err
	}
	return judge(others, found)
}

// CheckAlone refuses while any other control-plane node runs the cluster whose member has its data
// in o.Dir: with other data put in its place, there would be two clusters with the same keys.
// Machines that cannot be reached count as gone, as for [CheckForce], which says what it needs of
// o.
func CheckAlone(ctx context.Context, o Options) error {
	others, found, err := lookAtOthers(ctx, o)
	if err != nil {
		return fmt.Errorf("whether other control-plane nodes run is not known: %w", err)
	}
	var run []string
	for i, p := range found {
		at := others[i].Name + " at " + others[i].URL
		if p.lost {
			return fmt.Errorf("this machine cannot reach %s: %w", at, p.err)
		}
		if p.member || p.api != "" {
			run = append(run, at)
		}
	}
	if len(run) == 0 {
		return nil
	}
	slices.Sort(run)
	return othersRunError("other control-plane nodes run the cluster: " + strings.Join(run, ", "))
}

// lookAtOthers asks all other voters what they do. Without any, all results are nil.
func lookAtOthers(ctx context.Context, o Options) ([]Member, []presence, error) {
	p, err := ReadPeers(o.Dir)
	if err != nil || p == nil {
		return nil, nil, err
	}
	others, err := p.others(o.Dir)
	if err != nil || len(others) == 0 {
		return nil, nil, err
	}
	members, err := memberCaller(o.PeerCA, o.PeerPair, forceLimit)
	if err != nil {
		return nil, nil, fmt.Errorf("the other control-plane nodes cannot be asked: %w", err)
	}
	var api caller
	if o.APIPort != 0 {
		if api, err = apiCaller(o.APICA, forceLimit); err != nil {
			return nil, nil, fmt.Errorf("the other API servers cannot be asked: %w", err)
		}
	}
	found := make([]presence, len(others))
	var asked sync.WaitGroup
	for i, m := range others {
		asked.Go(func() { found[i] = look(ctx, m, members, api, o.APIPort) })
	}
	asked.Wait()
	if err := ctx.Err(); err != nil { // what was not asked is not gone
		return nil, nil, fmt.Errorf("asking the other control-plane nodes: %w", err)
	}
	return others, found, nil
}

// presence is what another control-plane node was seen to do.
type presence struct {
	// member is whether its etcd answers, ready whether its API server does and is ready.
	member, ready bool
	// api is the URL of an API server that answers.
	api string
	// err is why an answer could not be understood, or why this machine could not ask.
	err  error
	lost bool // this machine could not ask
}

// look asks a machine's member of etcd, and its API server, which is all that a lone member has. A
// port of 0 is for API servers that are not asked.
func look(ctx context.Context, m Member, members, api caller, port int) (found presence) {
	for i := range forceAsks {
		if i > 0 {
			select {
			case <-time.After(forcePause):
			case <-ctx.Done():
				return found
			}
		}
		var ofAPI presence
		var both sync.WaitGroup
		both.Go(func() {
			_, err := members.status(ctx, m.URL+"/version")
			found = found.after(err)
			found.member = found.member || !silent(err)
		})
		if u, err := url.Parse(m.URL); err == nil && port != 0 {
			at := "https://" + net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
			both.Go(func() {
				status, err := api.status(ctx, at+"/readyz")
				ofAPI = ofAPI.after(err)
				ofAPI.ready = status == http.StatusOK
				if !silent(err) {
					ofAPI.api = at
				}
			})
		}
		both.Wait()
		found.ready, found.api = ofAPI.ready, ofAPI.api
		found.lost = found.lost || ofAPI.lost
		found.err = errors.Join(found.err, ofAPI.err)
		if found.member || found.api != "" || found.lost {
			break
		}
	}
	return found
}

func (p presence) after(err error) presence {
	p.lost = errors.Is(err, unix.ENETUNREACH)
	p.err = nil
	if p.lost || !silent(err) {
		p.err = err
	}
	return p
}

// silent is whether a call failed because no one accepts connections. A machine that accepts one
// runs, whatever it answers: its certificate or ours may have expired, or it may be busy.
func silent(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// judge says why this member must not go on without the others, if so.
func judge(others []Member, found []presence) error {
	var live, ready []string
	for i, m := range others {
		at := m.Name + " at " + m.URL
		if found[i].ready {
			ready = append(ready, at)
		}
		switch p := found[i]; {
		case p.lost:
			return fmt.Errorf("this machine cannot reach %s: %w", at, p.err)
		case p.ready && !p.member:
			return othersRunError(fmt.Sprintf("%s runs the cluster without this machine, which can only join it again: 'coracle leave --force' here, "+
				"and the command of 'coracle token create --control-plane' there", at))
		case p.api != "" && !p.member:
			said := "it is not ready"
			if p.err != nil {
				said = p.err.Error()
			}
			return othersRunError(fmt.Sprintf("an API server answers at %s, and may run the cluster without this machine (%s): wait until it is ready, or "+
				"end it with 'coracle down' there", p.api, said))
		case p.member && p.err != nil:
			live = append(live, fmt.Sprintf("%s (%v)", at, p.err))
		case p.member:
			live = append(live, at)
		}
	}
	slices.Sort(live)
	voters := len(others) + 1
	quorum := voters/2 + 1
	switch answer := strings.Join(live, ", "); {
	case len(live) >= quorum:
		return othersRunError(fmt.Sprintf("%d of %d control-plane nodes answer, and are a quorum without this one: %s; start this one as it is, with "+
			"'coracle up', or have it join them again after 'coracle leave --force'", len(live), voters, answer))
	case len(live)+1 >= quorum && len(live) > 0:
		return othersRunError(fmt.Sprintf("%s of the other control-plane nodes answers, and is a quorum together with this one: start this one as it is, "+
			"with 'coracle up'; to go on without the other one, end it first, with 'coracle down' there", answer))
	case len(ready) > 0:
		return othersRunError(fmt.Sprintf("the API server of %s is ready, so it has a quorum with machines that this one cannot reach: start this one as it "+
			"is, with 'coracle up'; if they died just now, try again in a minute", strings.Join(ready, ", ")))
	}
	return nil
}

// mayForce checks an order that may be old: the others may have come back since it was given. If
// they have, it is taken back, so that the next start is an ordinary one.
func (p *Peers) mayForce(ctx context.Context, o Options) error {
	err := CheckForce(ctx, o)
	var run othersRunError
	if !errors.As(err, &run) {
		return err
	}
	p.Force = false
	return errors.Join(fmt.Errorf("--force-new-cluster does not hold any more: %w", err), p.Write(o.Dir))
}

// others returns the other voters, as the database in dir has them. The database may lack the last
// second before a crash.
func (p *Peers) others(dir string) (all []Member, err error) {
	if err := whole(filepath.Join(dir, "etcd")); err != nil {
		return nil, damaged(filepath.Join(dir, "etcd"), p, err)
	}
	path := filepath.Join(dir, "etcd", "member", "snap", "db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err == nil {
		var known bool
		all, known, err = p.othersIn(db)
		err = errors.Join(err, db.Close())
		if err == nil && known {
			return all, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read etcd's members in %s: %w", path, err)
	}
	for name, url := range p.Cluster { // it has never been started
		if name != p.Name {
			all = append(all, Member{Name: name, URL: url})
		}
	}
	return all, nil
}

// othersIn returns the other voters that a database has. It knows them unless it is new.
func (p *Peers) othersIn(db *bolt.DB) (all []Member, known bool, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(schema.Members.Name())
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(_, value []byte) error {
			known = true
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
	return all, known, err
}
