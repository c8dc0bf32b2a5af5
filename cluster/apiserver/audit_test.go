package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/coracle-project/coracle/cluster/health"
)

const auditPolicyText = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [secrets]}]
- level: Request
  users: [auditor]
  resources: [{group: "", resources: [configmaps]}]
- level: None
`

// audited are options of a server that records.
func audited(t *testing.T, change func(*Options)) Options {
	return broken(t, func(o *Options) {
		o.Audit.PolicyFile, o.Audit.LogPath = filepath.Join(o.Root, "policy.yaml"), filepath.Join(o.Root, "audit", "log")
		if err := os.WriteFile(o.Audit.PolicyFile, []byte(auditPolicyText), 0o600); err != nil {
			t.Fatal(err)
		}
		change(o)
	})
}

// recorded are the events in all files of a log.
func recorded(t *testing.T, path string) (all []auditv1.Event) {
	t.Helper()
	files, _ := filepath.Glob(strings.TrimSuffix(path, filepath.Ext(path)) + "*")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is just being set aside
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var e auditv1.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				if !strings.HasSuffix(line, "\n") {
					continue // it is just being written
				}
				t.Fatalf("%s: %v: %s", file, err, line)
			}
			all = append(all, e)
		}
	}
	return all
}

func TestAudit(t *testing.T) {
	batches := webhookBatches
	webhookBatches.MaxBatchWait = 10 * time.Millisecond
	defer func() { webhookBatches = batches }()
	var mu sync.Mutex
	var sent []auditv1.Event
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, list.Items...)
	}))
	defer hook.Close()
	o := audited(t, func(o *Options) {
		o.Audit.MaxSize = 1
		o.Audit.WebhookConfig = filepath.Join(o.Root, "webhook")
		config := fmt.Sprintf(
			"apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: "+
				"a}}]\ncurrent-context: a\n", hook.URL,
		)
		if err := os.WriteFile(o.Audit.WebhookConfig, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("auditor", "system:masters"))
	makeSecret(t, client, "one", "no-one-may-read-this")
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("one", map[string]string{"k": "asked-for"}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func(where string, ask func() []auditv1.Event) {
		t.Helper()
		by := map[string]auditv1.Event{}
		eventually(t, where+" has the events", func() (bool, error) { // they may come in another order
			for _, e := range ask() {
				by[e.Verb+" "+e.ObjectRef.Resource] = e
			}
			for _, event := range []string{"create secrets", "create configmaps", "get configmaps"} {
				if _, ok := by[event]; !ok {
					return false, nil
				}
			}
			return true, nil
		})
		asked, secret := by["create configmaps"], by["create secrets"]
		if asked.Level != auditv1.LevelRequest || asked.RequestObject == nil || !strings.Contains(string(asked.RequestObject.Raw), "asked-for") ||
			asked.User.Username != "auditor" ||
			asked.Stage != auditv1.StageResponseComplete || asked.ResponseStatus.Code != http.StatusCreated {
			t.Errorf("%s: event %+v", where, asked)
		}
		if secret.Level != auditv1.LevelMetadata || secret.RequestObject != nil || secret.ResponseObject != nil {
			t.Errorf("%s: event %+v", where, secret)
		}
		if e, ok := by["list pods"]; ok {
			t.Errorf("%s: event that the policy leaves out: %+v", where, e)
		}
	}
	check("the log", func() []auditv1.Event { return recorded(t, o.Audit.LogPath) })
	check("the webhook", func() []auditv1.Event {
		mu.Lock()
		defer mu.Unlock()
		return append([]auditv1.Event{}, sent...)
	})
	if info, err := os.Stat(o.Audit.LogPath); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if data, err := os.ReadFile(o.Audit.LogPath); err != nil || strings.Contains(string(data), "no-one-may-read-this") {
		t.Errorf("a Secret's value is in the log, %v", err)
	}
	const large = 4
	for i := range large {
		m := configMap(fmt.Sprintf("large-%d", i), map[string]string{"k": strings.Repeat("x", 400<<10)})
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the log is set aside", func() (bool, error) {
		files, err := filepath.Glob(o.Audit.LogPath + "-*")
		n := 0
		for _, e := range recorded(t, o.Audit.LogPath) {
			if e.ObjectRef.Resource == "configmaps" && e.Verb == "create" {
				n++
			}
		}
		return len(files) > 0 && n == large+1, err
	})
}

// A full disk loses events, and says so; the API goes on.
func TestAuditOnAFullDisk(t *testing.T) {
	var board health.Board
	o := audited(t, func(o *Options) { o.Audit.LogPath, o.Audit.Health = "/dev/full", board.Add("audit log") })
	s, stop := serve(t, o)
	defer stop()
	client := clientOf(t, s.ClientConfig("auditor", "system:masters"))
	for i := range 3 {
		makeSecret(t, client, fmt.Sprintf("s%d", i), "x")
	}
	eventually(t, "it says that events are lost", func() (bool, error) {
		state := board.States()[0]
		return !state.Healthy && strings.Contains(state.Message, "events are lost: write /dev/full: no space left on device; make room"), nil
	})
	if list, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 3 {
		t.Errorf("with a full disk: %v, %v", list, err)
	}
}

// limited fails when it is full, having written what there was room for.
type limited struct {
	bytes.Buffer
	room int
}

func (l *limited) Write(p []byte) (int, error) {
	n, _ := l.Buffer.Write(p[:min(len(p), l.room)])
	if l.room -= n; n < len(p) {
		return n, errors.New("full")
	}
	return n, nil
}

// After an event that was written in part the next ones are whole lines again, and what was lost is
// counted.
func TestEventLogGoesOn(t *testing.T) {
	var board health.Board
	out := &limited{room: 12}
	l := &eventLog{path: "log", out: out, health: board.Add("audit log"), log: slog.New(slog.DiscardHandler)}
	for _, event := range []string{"first\n", "second\n", "third\n", "fourth\n"} {
		if n, err := l.Write([]byte(event)); err != nil || n != len(event) {
			t.Errorf("%q: %d, %v", event, n, err)
		}
		if event == "third\n" {
			if state := board.States()[0]; state.Healthy ||
				!strings.Contains(state.Message, "events are lost: full; see why log cannot be written") {
				t.Errorf("state %+v", state)
			}
			out.room = 100
		}
	}
	if want := "first\nsecond\nfourth\n"; out.String() != want {
		t.Errorf("written %q, want %q", out.String(), want)
	}
	if state := board.States()[0]; !state.Healthy || !strings.Contains(state.Message, "2 were lost") {
		t.Errorf("state %+v", state)
	}
}

// A log that others could read is closed to them before events are written.
func TestAuditLogIsPrivate(t *testing.T) {
	for _, size := range []int{0, 1} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := (&AuditOptions{LogPath: path, MaxSize: size}).open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte("event\n")); err != nil {
			t.Error(err)
		}
		_ = out.(io.Closer).Close()
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("size %d: mode %v, %v", size, info.Mode(), err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "before\nevent\n" {
			t.Errorf("size %d: content %q, %v", size, data, err)
		}
	}
}

func TestAuditOptionsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	file := func(content string) string {
		f, err := os.CreateTemp(dir, "policy")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, _ = f.WriteString(content)
		return f.Name()
	}
	good := file(auditPolicyText)
	const log = "/nonexistent/log"
	for name, test := range map[string]struct {
		o    AuditOptions
		want string
	}{
		"nothing":               {AuditOptions{}, ""},
		"fine":                  {AuditOptions{PolicyFile: good, LogPath: log}, ""},
		"no policy":             {AuditOptions{LogPath: log}, "--audit-log-path records nothing without --audit-policy-file"},
		"no policy for webhook": {AuditOptions{WebhookConfig: log}, "--audit-webhook-config-file sends nothing without --audit-policy-file"},
		"nowhere": {
			AuditOptions{PolicyFile: good},
			"--audit-policy-file records nothing without --audit-log-path or --audit-webhook-config-file",
		},
		"no such policy": {AuditOptions{PolicyFile: log, LogPath: log}, "--audit-policy-file: open /nonexistent/log: no such file"},
		"unknown level": {
			AuditOptions{PolicyFile: file(strings.Replace(auditPolicyText, "Metadata", "Everything", 1)), LogPath: log},
			"line 5: rules[0].level: Unsupported value",
		},
		"unknown field": {
			AuditOptions{PolicyFile: file(strings.Replace(auditPolicyText, "omitStages", "omitStage", 1)), LogPath: log},
			`line 3: strict decoding error: unknown field "omitStage"`,
		},
		"field inside": {
			AuditOptions{PolicyFile: file(strings.Replace(auditPolicyText, "  users", "  user", 1)), LogPath: log},
			`line 8: strict decoding error: unknown field "rules[1].user"`,
		},
		"no YAML":         {AuditOptions{PolicyFile: file("rules: ["), LogPath: log}, "line 1"},
		"no rules":        {AuditOptions{PolicyFile: file("apiVersion: audit.k8s.io/v1\nkind: Policy\n"), LogPath: log}, "0 rules"},
		"a directory":     {AuditOptions{PolicyFile: good, LogPath: dir}, "is a directory; name a file in it"},
		"a negative size": {AuditOptions{PolicyFile: good, LogPath: log, MaxSize: -1}, "--audit-log-maxsize -1 is below 0"},
		"no such webhook": {AuditOptions{PolicyFile: good, WebhookConfig: log}, "--audit-webhook-config-file /nonexistent/log: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.o.Check()
			if test.want == "" && err != nil || test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	if _, err := os.Stat("/nonexistent"); err == nil {
		t.Error("checking has made a directory")
	}
}
