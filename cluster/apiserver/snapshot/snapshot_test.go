package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/pki"
)

// With these in the environment the test binary restores a snapshot, or recovers from a restore,
// and kills itself at a step.
const (
	restoreRoot = "CORACLE_TEST_ROOT"
	restoreFile = "CORACLE_TEST_FILE"
	killAt      = "CORACLE_TEST_KILL_AT"
	// serveRoot has it run etcd until its standard input ends.
	serveRoot = "CORACLE_TEST_SERVE"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(serveRoot); root != "" {
		s, err := etcd.Start(context.Background(), etcd.Options{Dir: root, State: filepath.Join(root, "run")})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("serves")
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Close()
		os.Exit(0)
	}
	if root := os.Getenv(restoreRoot); root != "" {
		left, _ := strconv.Atoi(os.Getenv(killAt))
		step = func(name string) {
			if left--; left < 0 {
				fmt.Println(name)
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}
		var err error
		if file := os.Getenv(restoreFile); file != "" {
			_, err = Restore(context.Background(), etcd.Options{Dir: root}, file, dataversion.Own(""), nothing, silent)
		} else {
			err = Recover(root)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func nothing(int64, int64) {}

var silent = slog.New(slog.DiscardHandler)

// shortDir returns a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "snap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// with calls act with a client of the etcd in root.
func with(t *testing.T, root string, act func(c *clientv3.Client)) {
	t.Helper()
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: root, State: filepath.Join(root, "run")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := s.Client()
	defer c.Close()
	act(c)
}

// cluster makes a root whose data say what.
func cluster(t *testing.T, what string) string {
	t.Helper()
	root := shortDir(t)
	with(t, root, func(c *clientv3.Client) {
		for i := range 20 {
			if _, err := c.Put(t.Context(), "/registry/what", fmt.Sprintf("%s, version %d", what, i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Put(t.Context(), "/registry/what", what); err != nil {
			t.Fatal(err)
		}
	})
	ensure(t, root)
	return root
}

func ensure(t *testing.T, root string) {
	t.Helper()
	if _, err := pki.Ensure(filepath.Join(root, "pki"), "https://127.0.0.1:6443", []string{"127.0.0.1"}, nil); err != nil {
		t.Fatal(err)
	}
}

// says is what the data in root say, after checking that etcd's are those of the same cluster as
// the keys.
func says(t *testing.T, root string, authorities map[string]string) (what string) {
	t.Helper()
	with(t, root, func(c *clientv3.Client) {
		got, err := c.Get(t.Context(), "/registry/what")
		if err != nil || got.Count != 1 {
			t.Fatalf("%s: %v, %v", root, got, err)
		}
		what = string(got.Kvs[0].Value)
	})
	for _, name := range keys {
		if content := readFile(t, filepath.Join(root, name)); content != authorities[what+name] {
			t.Errorf("%s: etcd's data are the %s ones, and %s is not", root, what, name)
		}
	}
	return what
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func save(t *testing.T, root string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "snapshot")
	if _, err := Save(t.Context(), root, filepath.Join(root, "run"), file,
		Facts{Settings: map[string]string{"service-cidr": "10.0.0.0/24"}}, nothing, silent); err != nil {
		t.Fatal(err)
	}
	return file
}

func restore(t *testing.T, root, file string) (Result, error) {
	t.Helper()
	return Restore(t.Context(), options(root), file, dataversion.Own(""), nothing, silent)
}

// options say how to ask other members of the cluster in root.
func options(root string) etcd.Options {
	files := (&pki.Bundle{Dir: filepath.Join(root, "pki")}).EtcdFiles()
	return etcd.Options{Dir: root, PeerCA: files.CACert, PeerPair: files.Pair}
}

// Regression: a control-plane node was given other data while the others ran, and there were two
// clusters with the same keys.
func TestRestoreNextToOthers(t *testing.T) {
	file := save(t, cluster(t, "new"))
	target := shortDir(t)
	b, err := pki.Ensure(filepath.Join(target, "pki"), "https://127.0.0.1:6443", []string{"127.0.0.1"}, nil)
	if err == nil {
		_, err = b.EtcdPeer([]string{"127.0.0.1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	peers := etcd.Peers{Name: "one", URL: "https://127.0.0.1:1", Cluster: map[string]string{
		"one": "https://127.0.0.1:1", "two": "https://" + l.Addr().String(),
	}}
	if err := peers.Write(target); err != nil {
		t.Fatal(err)
	}
	before := contents(t, target)
	if _, err := restore(t, target, file); err == nil || !strings.Contains(err.Error(), "nothing was changed: other control-plane nodes run the "+
		"cluster: two at ") {
		t.Errorf("restored next to another member: %v", err)
	}
	if after := contents(t, target); !maps.Equal(before, after) {
		t.Errorf("a refused restore has changed %v to %v", before, after)
	}
	_ = l.Close()
	if _, err := restore(t, target, file); err != nil {
		t.Errorf("when the other one is gone: %v", err)
	}
}

func TestSaveAndRestore(t *testing.T) {
	source, target := cluster(t, "new"), cluster(t, "old")
	var file string
	var revision int64
	with(t, source, func(c *clientv3.Client) { // it runs
		file = save(t, source)
		got, err := c.Put(t.Context(), "/registry/what", "later")
		if err != nil {
			t.Fatal(err)
		}
		revision = got.Header.Revision
	})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	facts, err := Check(file, nothing)
	if err != nil || facts.Etcd != etcd.Version || facts.Kubernetes == "" || facts.Settings["service-cidr"] != "10.0.0.0/24" ||
		facts.Created.IsZero() {
		t.Errorf("%+v, %v", facts, err)
	}
	authorities := map[string]string{}
	for _, name := range keys {
		authorities["new"+name], authorities["old"+name] = readFile(t, filepath.Join(source, name)), readFile(t, filepath.Join(target, name))
	}
	old := readFile(t, database(target))
	if err := (etcd.Peers{Name: etcd.LoneName, URL: "https://127.0.0.1:1"}).Write(target); err != nil { // a member of several
		t.Fatal(err)
	}
	rotated := filepath.Join(target, "pki")
	if err := pki.Rotate(rotated, pki.What{Authority: true, ServiceAccountKey: true}); err != nil { // after the snapshot
		t.Fatal(err)
	}
	result, err := restore(t, target, file)
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, target) // as the next start does
	if got := says(t, target, authorities); got != "new" {
		t.Errorf("the restored data are the %s ones", got)
	}
	if readFile(t, filepath.Join(result.Kept, "etcd/member/snap/db")) != old ||
		readFile(t, filepath.Join(result.Kept, keys[0])) != authorities["old"+keys[0]] {
		t.Errorf("the old data are not in %s", result.Kept)
	}
	if peers, err := etcd.ReadPeers(target); err != nil || peers != nil || !exists(etcd.PeersFile(result.Kept)) {
		t.Errorf("the restored data have the peers of the old ones: %+v, %v", peers, err)
	}
	with(t, target, func(c *clientv3.Client) {
		got, err := c.Get(t.Context(), "/registry/what")
		if err != nil || got.Header.Revision < revision+revisionBump/2 {
			t.Errorf("revision %d, and clients may have seen %d: %v", got.Header.Revision, revision, err)
		}
		if _, err := c.Get(t.Context(), "/registry/what", clientv3.WithRev(revision)); err == nil {
			t.Error("a revision of before can be read")
		}
	})
	// Where there is no cluster, of a snapshot made while its cluster did not run.
	with(t, source, func(c *clientv3.Client) { _, _ = c.Put(t.Context(), "/registry/what", "new") })
	empty := filepath.Join(shortDir(t), "root")
	if result, err := restore(t, empty, save(t, source)); err != nil || result.Kept != "" {
		t.Errorf("into an empty directory: %+v, %v", result, err)
	}
	if got := says(t, empty, authorities); got != "new" {
		t.Errorf("the restored data are the %s ones", got)
	}
	left, err := os.ReadDir(empty)
	if err != nil || slices.ContainsFunc(left, func(e fs.DirEntry) bool {
		return strings.Contains(e.Name(), "restore") && e.Name() != restoredName
	}) {
		t.Errorf("left behind: %v, %v", left, err)
	}
	var restored intent
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(empty, restoredName))), &restored); err != nil ||
		restored.Settings["service-cidr"] != "10.0.0.0/24" || restored.Keep == "" {
		t.Errorf("%s says %+v, %v", restoredName, restored, err)
	}
	ensure(t, empty) // as the next start does
	if readFile(t, filepath.Join(empty, keys[0])) != authorities["new"+keys[0]] {
		t.Error("the next start has replaced the certificate authority")
	}
}

// Regression: the second restore of a snapshot gave the revisions of the first again, for other
// objects.
func TestRevisionsNeverGoBack(t *testing.T) {
	root := cluster(t, "old")
	file := save(t, root)
	var last int64
	for i := range 3 {
		if _, err := restore(t, root, file); err != nil {
			t.Fatal(err)
		}
		with(t, root, func(c *clientv3.Client) {
			got, err := c.Get(t.Context(), "/registry/what")
			if err != nil || got.Header.Revision < last+revisionBump {
				t.Errorf("restore %d: revision %d after %d, %v", i+1, got.Header.Revision, last, err)
			}
			// What was written last is deleted, and its revision is compacted away.
			for range 50 {
				if _, err := c.Put(t.Context(), "/registry/short", "x"); err != nil {
					t.Fatal(err)
				}
			}
			gone, err := c.Delete(t.Context(), "/registry/short")
			if err != nil {
				t.Fatal(err)
			}
			last = gone.Header.Revision
			if _, err := c.Compact(t.Context(), last, clientv3.WithCompactPhysical()); err != nil {
				t.Fatal(err)
			}
		})
	}
	if _, seen, err := etcd.Revisions(database(root)); err != nil || seen != last {
		t.Errorf("revision %d, want %d: %v", seen, last, err)
	}
	// Data that cannot be read do not keep from a restore.
	if err := os.Truncate(database(root), 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := restore(t, root, file); err != nil {
		t.Error(err)
	}
}

// Regression: a restored cluster had the IDs of the cluster that it replaced, whose members could
// then send it their log.
func TestRestoredClusterHasOtherIDs(t *testing.T) {
	root := cluster(t, "old")
	file := save(t, root)
	clusters, members := map[uint64]int{}, map[uint64]int{}
	for i := range 3 {
		if i > 0 {
			if _, err := restore(t, root, file); err != nil {
				t.Fatal(err)
			}
		}
		with(t, root, func(c *clientv3.Client) {
			got, err := c.Get(t.Context(), "/registry/what")
			if err != nil {
				t.Fatal(err)
			}
			clusters[got.Header.ClusterId] = i
			members[got.Header.MemberId] = i
		})
	}
	if len(clusters) != 3 || len(members) != 3 {
		t.Errorf("the cluster and two restores have the IDs %v, and their members %v", clusters, members)
	}
}

// contents are the files below root with their sums.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.Type().IsRegular() && e.Name() != "lock":
			data, err := os.ReadFile(path)
			all[path] = fmt.Sprintf("%x", sha256.Sum256(data))
			return err
		case e.IsDir():
			all[path] = "directory"
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// repacked changes the files of an archive, with sums that fit.
func repacked(t *testing.T, archived string, change func(name string, content []byte) (string, []byte)) string {
	t.Helper()
	var out, sums bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(content)
	}
	for in := tar.NewReader(strings.NewReader(archived)); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == sumsName {
			continue
		}
		name, content := change(header.Name, content)
		add(name, content)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	add(sumsName, sums.Bytes())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// withFacts changes the facts of an archive.
func withFacts(t *testing.T, archived string, change func(*Facts)) string {
	return repacked(t, archived, func(name string, content []byte) (string, []byte) {
		if name != factsName {
			return name, content
		}
		var f Facts
		if err := json.Unmarshal(content, &f); err != nil {
			t.Fatal(err)
		}
		change(&f)
		content, _ = json.Marshal(f)
		return name, content
	})
}

// withDatabase changes etcd's part, with a checksum that fits.
func withDatabase(t *testing.T, archived string, change func(tx *bolt.Tx) error) string {
	return repacked(t, archived, func(name string, content []byte) (string, []byte) {
		if name != databaseName {
			return name, content
		}
		file := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(file, content[:len(content)-sha256.Size], 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(file, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(change), db.Close()); err != nil {
			t.Fatal(err)
		}
		changed := []byte(readFile(t, file))
		sum := sha256.Sum256(changed)
		return name, append(changed, sum[:]...)
	})
}

// A file that is no whole snapshot, or one of a newer version, changes nothing, and it is said what
// is wrong.
func TestRefused(t *testing.T) {
	target := cluster(t, "old")
	good := readFile(t, save(t, cluster(t, "new")))
	flipped := func(part float64) string {
		b := []byte(good)
		b[int(part*float64(len(b)))] ^= 1
		return string(b)
	}
	inKey := strings.Index(good, "BEGIN EC PRIVATE KEY")
	etcdAlone := good[1024+strings.Index(good[1024:], databaseName):]
	for name, test := range map[string]struct{ content, want string }{
		"empty":           {"", "'coracle snapshot save' did not write it"},
		"text":            {strings.Repeat("hello\n", 1000), "'coracle snapshot save' did not write it"},
		"etcd's snapshot": {etcdAlone[512:], "'coracle snapshot save' did not write it"},
		"another archive": {repacked(t, good, func(name string, content []byte) (string, []byte) {
			return "x" + name, content
		}), "'coracle snapshot save' did not write it"},
		"other files inside": {repacked(t, good, func(name string, content []byte) (string, []byte) {
			return strings.Replace(name, "pki/ca", "../ca", 1), content
		}), `it has "../ca.pem" where pki/ca.pem should be`},
		"cut at the facts":  {good[:600], "its end is missing"},
		"cut in the middle": {good[:len(good)/2], "its end is missing"},
		"cut before a key":  {good[:len(good)-4096], "not a whole snapshot"},
		"without its sums":  {good[:strings.LastIndex(good, sumsName)], "not a whole snapshot"},
		"a bit of etcd's":   {flipped(0.5), "it is damaged"},
		"a bit of a key":    {good[:inKey+40] + string(good[inKey+40]^1) + good[inKey+41:], "it is damaged"},
		"a newer format": {withFacts(t, good, func(f *Facts) {
			f.Format = 2
			f.Coracle = "v9.1.0"
		}), "its format is 2, and this version of coracle reads format 1: restore it with the version that wrote it, v9.1.0"},
		"newer Kubernetes": {withFacts(t, good, func(f *Facts) { f.Kubernetes = "1.99" }), "Kubernetes 1.99 wrote it"},
		"newer etcd": {withDatabase(t, good, func(tx *bolt.Tx) error {
			return tx.Bucket(schema.Meta.Name()).Put(schema.MetaStorageVersionName, []byte("3.7.0"))
		}), "etcd 3.7 wrote it"},
		"a key that is none": {repacked(t, good, func(name string, content []byte) (string, []byte) {
			if name == keys[1] {
				content = []byte("no key")
			}
			return name, content
		}), keys[1]},
		"a database that is none": {repacked(t, good, func(name string, content []byte) (string, []byte) {
			if name == databaseName {
				content = []byte(strings.Repeat("no database ", 1000))
			}
			return name, content
		}), "invalid database"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			// Only for the program that restores them they are too new.
			if _, err := Check(file, nothing); (err == nil) != (name == "newer Kubernetes" || name == "newer etcd") {
				t.Errorf("checking it: %v", err)
			}
			before := contents(t, target)
			_, err := restore(t, target, file)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "nothing was changed") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, test.want)
			}
			if after := contents(t, target); !maps.Equal(before, after) {
				t.Errorf("the cluster's data were changed: %v, were %v", after, before)
			}
		})
	}
	t.Run("a directory", func(t *testing.T) {
		if _, err := restore(t, target, t.TempDir()); !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a cluster that runs", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
			t.Fatal(err)
		}
		with(t, target, func(c *clientv3.Client) {
			if _, err := restore(t, target, file); err == nil || !strings.Contains(err.Error(), "runs a cluster on") {
				t.Errorf("error %v", err)
			}
			if got, err := c.Get(t.Context(), "/registry/what"); err != nil || string(got.Kvs[0].Value) != "old" {
				t.Errorf("the cluster says %v, %v", got, err)
			}
		})
		// The same file is good when it does not run.
		if _, err := restore(t, target, file); err != nil {
			t.Error(err)
		}
	})
}

// at runs a restore of file, or with "" a recovery, in a process that is killed at a step. It
// returns the step's name, "" if there were fewer.
func at(t *testing.T, n int, root, file string) (name string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), restoreRoot+"="+root, restoreFile+"="+file, killAt+"="+strconv.Itoa(n))
	out, err := cmd.Output()
	if err == nil {
		return ""
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("step %d: %v: %s", n, err, out)
	}
	return strings.TrimSpace(string(out))
}

func copied(t *testing.T, root string) string {
	t.Helper()
	to := filepath.Join(shortDir(t), "root")
	if err := os.CopyFS(to, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A restore that is killed at any step, and whose recovery is killed at any step, too, leaves
// either the old data or the new.
func TestKilled(t *testing.T) {
	source, old := cluster(t, "new"), cluster(t, "old")
	file := save(t, source)
	authorities := map[string]string{}
	for _, name := range keys {
		authorities["new"+name], authorities["old"+name] = readFile(t, filepath.Join(source, name)), readFile(t, filepath.Join(old, name))
	}
	var steps, outcomes []string
	for n := 0; ; n++ {
		root := copied(t, old)
		killed := at(t, n, root, file)
		if killed == "" {
			break
		}
		steps = append(steps, killed)
		var recoveries int
		for m := 0; killed == "decided"; m++ { // what is left to do after a later step, it has left to do after some m
			again := copied(t, root)
			if at(t, m, again, "") == "" {
				break
			}
			recoveries++
			if err := Recover(again); err != nil {
				t.Fatalf("killed at %q, recovery at its step %d: %v", killed, m, err)
			}
			if readFile(t, filepath.Join(again, keys[0])) != authorities["new"+keys[0]] || !exists(database(again)) ||
				exists(filepath.Join(again, decidedName)) {
				t.Errorf("killed at %q, recovery at its step %d: the new data are not in place", killed, m)
			}
		}
		if err := Recover(root); err != nil {
			t.Fatalf("killed at %q: %v", killed, err)
		}
		if exists(filepath.Join(root, stagingName)) || exists(filepath.Join(root, decidedName)) {
			t.Errorf("killed at %q: parts of the restore are left", killed)
		}
		what := says(t, root, authorities)
		outcomes = append(outcomes, what)
		if killed == "decided" && recoveries < 2*len(parts)+1 {
			t.Errorf("recovery was killed at %d steps only", recoveries)
		}
	}
	t.Logf("steps %q", steps)
	decided := slices.Index(steps, "decided")
	want := append(slices.Repeat([]string{"old"}, max(decided, 0)), slices.Repeat([]string{"new"}, len(steps)-max(decided, 0))...)
	if decided < 4 || len(steps) < decided+2*len(parts)+1 || !slices.Equal(outcomes, want) {
		t.Errorf("killed at %q, the data were %q", steps, outcomes)
	}
}
