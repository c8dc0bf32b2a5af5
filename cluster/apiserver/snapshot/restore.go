package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"k8s.io/client-go/util/keyutil"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

const (
	// stagingName is the directory in which a restore is prepared, decidedName the one that a
	// restore is finished from. intentName is in it, and becomes restoredName when all parts are in
	// place. cmd/coracle reads both.
	stagingName  = "restore.new"
	decidedName  = "restore"
	intentName   = "intent.json"
	restoredName = "restored.json"
	// revisionBump is what etcd's documentation recommends for clusters of Kubernetes. The data
	// that are replaced may have a restore of the same snapshot behind them, so it is counted from
	// their revision, if that is the higher one.
	revisionBump = 1_000_000_000
)

// parts are what is put in place, below ROOT.
var parts = append([]string{"etcd/member"}, keys...)

// outdated are files that are wrong for what is put in place. What is restored is a cluster of one:
// the other members of etcd have other data. And a rotation of certificates since the snapshot
// would replace the restored keys, which are older.
var outdated = []string{"etcd/peers.json", "pki/rotation.json"}

// intent is what finishing a restore has to know.
type intent struct {
	// Keep is the directory for the data of before, below ROOT. It names the restore, too.
	Keep string `json:"keep"`
	Facts
}

// Result is what a restore did.
type Result struct {
	Facts
	// Kept is where the data of before are, "" if there were none.
	Kept string `json:"kept,omitempty"`
}

// Check reads a whole snapshot and says what is wrong with it, if anything.
func Check(path string, progress Progress) (Facts, error) {
	return open(path, "", func(Facts) error { return nil }, progress)
}

// open reads the file at path.
func open(path, dir string, check func(Facts) error, progress Progress) (Facts, error) {
	f, err := os.Open(path)
	if err != nil {
		return Facts{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Facts{}, err
	}
	if !info.Mode().IsRegular() {
		return Facts{}, fmt.Errorf("%s: %w: it is no file", path, ErrDamaged)
	}
	done := int64(0)
	facts, err := read(f, dir, check, func(n int) {
		done += int64(n)
		progress(done, info.Size())
	})
	facts.Size = info.Size()
	if err != nil {
		return facts, fmt.Errorf("%s: %w", path, err)
	}
	return facts, nil
}

// Restore replaces the data of the cluster in o.Dir, if there are any, by those of the snapshot at
// path. own are the versions of the program that is to use them. The cluster must not run, also not
// on other control-plane nodes, see [etcd.CheckAlone], which says what it needs of o.
func Restore(
	ctx context.Context, o etcd.Options, path string, own dataversion.Versions, progress Progress, log *slog.Logger,
) (Result, error) {
	root := o.Dir
	lock, err := etcd.Lock(root)
	if err != nil {
		return Result{}, fmt.Errorf("nothing was changed: %w", err)
	}
	defer lock.Close()
	if err := recoverLocked(root); err != nil {
		return Result{}, err
	}
	if err := etcd.CheckAlone(ctx, o); err != nil {
		return Result{}, fmt.Errorf("nothing was changed: %w; run 'coracle down' on all others, restore here, and have them join this machine "+
			"after 'coracle leave --force'; or run 'coracle leave --force' here before, which removes this machine's own data", err)
	}
	staging := filepath.Join(root, stagingName)
	if err := os.Mkdir(staging, 0o700); err != nil {
		return Result{}, fmt.Errorf("nothing was changed: %w", err)
	}
	step("staging made")
	facts, err := stage(ctx, root, path, own, progress, log)
	keep := "before-restore-" + time.Now().UTC().Format("20060102T150405.000Z")
	if err == nil {
		err = decide(root, intent{Keep: keep, Facts: facts})
	}
	if err != nil {
		return Result{}, errors.Join(fmt.Errorf("nothing was changed: %w", err), os.RemoveAll(staging))
	}
	step("decided")
	if err := finish(root); err != nil {
		return Result{}, err
	}
	result := Result{Facts: facts}
	if kept := filepath.Join(root, keep); exists(kept) {
		result.Kept = kept
	}
	return result, nil
}

// stage checks a snapshot and makes of it what is put in place.
func stage(ctx context.Context, root, path string, own dataversion.Versions, progress Progress, log *slog.Logger) (Facts, error) {
	staging := filepath.Join(root, stagingName)
	facts, err := open(path, staging, func(f Facts) error {
		return own.CanRead(dataversion.Versions{Coracle: f.Coracle, Kubernetes: f.Kubernetes})
	}, progress)
	if errors.Is(err, dataversion.ErrNewer) {
		return facts, fmt.Errorf("%w; install that version, or choose an older snapshot", err)
	}
	if err != nil {
		return facts, err
	}
	step("archive read")
	for _, name := range keys {
		if _, err := keyutil.PrivateKeyFromFile(filepath.Join(staging, name)); err != nil {
			return facts, fmt.Errorf("%s: %w: %s: %w", path, ErrDamaged, name, err)
		}
	}
	db := filepath.Join(staging, databaseName)
	if err := etcd.CheckVersion(db); err != nil {
		return facts, fmt.Errorf("%s: %w", path, err)
	}
	if err := ctx.Err(); err != nil {
		return facts, err
	}
	if err := restoreEtcd(db, filepath.Join(staging, "etcd"), database(root), log); err != nil {
		return facts, fmt.Errorf("%s: %w", path, err)
	}
	step("etcd restored")
	return facts, errors.Join(os.Remove(db), ctx.Err())
}

// restoreEtcd makes etcd's directory of its snapshot, whose checksum it compares. Its revisions are
// later than those in the database that it is to replace.
func restoreEtcd(db, dir, replaced string, log *slog.Logger) error {
	saved, _, err := etcd.Revisions(db)
	if err != nil {
		return err
	}
	bump := int64(revisionBump)
	if exists(replaced) {
		_, seen, err := etcd.Revisions(replaced)
		if err != nil { // it may be why there is a restore
			log.Warn("the last revision of the data that are replaced is not known", "err", err)
		}
		bump += max(0, seen-saved)
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: db, Name: etcd.LoneName, OutputDataDir: dir, PeerURLs: []string{etcd.LoneURL},
		InitialCluster: etcd.LoneName + "=" + etcd.LoneURL,
		// The IDs of the cluster and of its member are made from this. With those of before, members
		// of the cluster that is replaced would send this one their log: they have its authority.
		InitialClusterToken: "restored-" + rand.Text(), RevisionBump: uint64(bump), MarkCompacted: true,
	})
}

// decide writes the intent and makes it count. The rename comes last: after an error from decide,
// no restore happens.
func decide(root string, i intent) error {
	staging := filepath.Join(root, stagingName)
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(staging, intentName), data, 0o600); err != nil {
		return err
	}
	step("intent written")
	if err := syncTree(staging); err != nil {
		return err
	}
	return os.Rename(staging, filepath.Join(root, decidedName))
}

// Recover finishes or takes back a restore that was cut off in the cluster's directory root. It is
// called before anything reads the data. Without such a restore it only looks whether there is one.
func Recover(root string) error {
	if !exists(filepath.Join(root, stagingName)) && !exists(filepath.Join(root, decidedName)) {
		return nil
	}
	lock, err := etcd.Lock(root)
	if err != nil {
		return fmt.Errorf("a restore is not finished: %w", err)
	}
	defer lock.Close()
	return recoverLocked(root)
}

func recoverLocked(root string) error {
	if err := os.RemoveAll(filepath.Join(root, stagingName)); err != nil {
		return fmt.Errorf("take back a restore that was cut off: %w", err)
	}
	if !exists(filepath.Join(root, decidedName)) {
		return nil
	}
	return finish(root)
}

// finish puts the parts of a decided restore in place. It may have been cut off anywhere before.
func finish(root string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("a restore in %s is not finished, the next start goes on with it: %w", root, err)
		}
	}()
	if err := syncDir(root); err != nil { // the rename that decided
		return err
	}
	decided := filepath.Join(root, decidedName)
	data, err := os.ReadFile(filepath.Join(decided, intentName))
	if err == nil {
		var i intent
		if err := json.Unmarshal(data, &i); err != nil {
			return err
		}
		for _, part := range parts {
			if err := replace(root, part, i.Keep); err != nil {
				return err
			}
		}
		for _, name := range outdated {
			if err := setAside(root, name, i.Keep); err != nil {
				return err
			}
		}
		// From here on all parts are in place, and only the directory is left to be removed. What
		// was restored stays known: the next `coracle up` needs its settings.
		err = os.Rename(filepath.Join(decided, intentName), filepath.Join(root, restoredName))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	step("intent renamed")
	if err := syncDir(root); err != nil {
		return err
	}
	if err := os.RemoveAll(decided); err != nil {
		return err
	}
	return syncDir(root)
}

// setAside moves a file to what is kept, if it is there.
func setAside(root, name, keep string) error {
	from, kept := filepath.Join(root, name), filepath.Join(root, keep, name)
	if !exists(from) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		return err
	}
	if err := os.Rename(from, kept); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Dir(kept)), syncDir(filepath.Dir(from)))
}

// replace puts one part in place, unless that was done before. What was there is kept.
func replace(root, part, keep string) error {
	from, to := filepath.Join(root, decidedName, part), filepath.Join(root, part)
	if !exists(from) {
		return nil
	}
	kept := filepath.Join(root, keep, part)
	for _, path := range []string{kept, to} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
	}
	if exists(to) {
		if err := os.Rename(to, kept); err != nil {
			return err
		}
		step("old " + part + " moved")
	} else {
		_ = os.Remove(filepath.Dir(kept)) // if nothing is kept in it
		_ = os.Remove(filepath.Join(root, keep))
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	step("new " + part + " moved")
	var errs []error
	for _, dir := range []string{filepath.Dir(kept), filepath.Join(root, keep), root, filepath.Dir(to)} {
		if err := syncDir(dir); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// syncTree makes sure that a directory with all that is in it is on disk.
func syncTree(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(all) {
		if err := syncDir(path); err != nil {
			return err
		}
	}
	return nil
}

// syncDir makes sure that a directory, or a file, is on disk.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
