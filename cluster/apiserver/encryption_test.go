package apiserver

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	encryptionreload "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/health"
)

// aesKeys is an EncryptionConfiguration of Secrets whose first key is used for writing.
func aesKeys(names ...string) string {
	var b strings.Builder
	b.WriteString(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc:
      keys:
`)
	for _, name := range names {
		key := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))
		fmt.Fprintf(&b, "      - {name: %s, secret: %s}\n", name, key)
	}
	return b.String()
}

// onDisk says whether a text is in any file of etcd's, the log included.
func onDisk(t *testing.T, root, text string) bool {
	t.Helper()
	found, files := false, 0
	err := filepath.WalkDir(filepath.Join(root, "etcd"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		found = found || strings.Contains(string(data), text)
		return err
	})
	if err != nil || files < 2 {
		t.Fatalf("%d files of etcd's, %v", files, err)
	}
	return found
}

func makeSecret(t *testing.T, client kubernetes.Interface, name, value string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"value": value}}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// dialled is a client of the etcd of a server with these options.
func dialled(t *testing.T, o Options) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + etcd.Socket(o.State)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEncryptionAtRest(t *testing.T) {
	every := encryptionreload.EncryptionConfigFileChangePollDuration
	encryptionreload.EncryptionConfigFileChangePollDuration = 10 * time.Millisecond
	defer func() { encryptionreload.EncryptionConfigFileChangePollDuration = every }()
	const value = "no-one-may-read-this"
	makeSecret(t, admin(t), "plain", value)
	if !onDisk(t, server.options.Root, value) {
		t.Fatal("without encryption the value is not in etcd's files either, so nothing is tested")
	}
	var board health.Board
	o := broken(t, func(o *Options) {
		o.EncryptionConfig, o.EncryptionHealth = filepath.Join(o.Root, "encryption.yaml"), board.Add("encryption")
	})
	told := func(what string) {
		t.Helper()
		eventually(t, "it tells: "+what, func() (bool, error) {
			state := board.States()[0]
			return state.Healthy && len(state.Warnings) == 1 && strings.Contains(state.Warnings[0], what), fmt.Errorf("%+v", state)
		})
	}
	configure := func(content string) {
		t.Helper()
		if err := os.WriteFile(o.EncryptionConfig+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(o.EncryptionConfig+".new", o.EncryptionConfig); err != nil {
			t.Fatal(err)
		}
	}
	configure(aesKeys("first"))
	s, stop := serve(t, o)
	defer stop()
	client, raw := clientOf(t, s.ClientConfig("admin", "system:masters")), dialled(t, o)
	writtenWith := func(name string) string {
		t.Helper()
		got, err := raw.Get(t.Context(), "/registry/secrets/default/"+name)
		if err != nil || got.Count != 1 {
			t.Fatalf("%s in etcd: %v, %v", name, got, err)
		}
		with, ok := strings.CutPrefix(string(got.Kvs[0].Value), "k8s:enc:aescbc:v1:")
		if !ok {
			t.Fatalf("%s is not encrypted: %q", name, got.Kvs[0].Value)
		}
		with, _, _ = strings.Cut(with, ":")
		return with
	}
	readable := func(name string) bool { // from etcd, not from a cache
		secret, err := client.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && string(secret.Data["value"]) == value
	}
	makeSecret(t, client, "old", value)
	makeSecret(t, client, "left", value)
	if onDisk(t, o.Root, value) {
		t.Error("an encrypted value is in etcd's files")
	}
	if got := writtenWith("old"); got != "first" || !readable("old") {
		t.Errorf("written with key %s, readable %t", got, readable("old"))
	}

	if state := board.States()[0]; !state.Healthy || len(state.Warnings) != 0 {
		t.Errorf("before any change it tells %+v", state)
	}
	configure(aesKeys("second", "first"))
	told("kubectl replace")
	n := 0
	eventually(t, "the second key is used", func() (bool, error) {
		n++
		name := fmt.Sprintf("new-%d", n)
		makeSecret(t, client, name, value)
		return writtenWith(name) == "second", nil
	})
	if !readable("old") || writtenWith("old") != "first" {
		t.Error("what the first key encrypted is not readable")
	}
	old, err := client.CoreV1().Secrets("default").Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Update(t.Context(), old, metav1.UpdateOptions{}); err != nil { // as kubectl replace
		t.Fatal(err)
	}
	if got := writtenWith("old"); got != "second" {
		t.Errorf("a Secret that was written again is encrypted with key %s", got)
	}

	// A file that is no good changes nothing.
	configure("resources: [")
	told("stays in force")
	makeSecret(t, client, "meanwhile", value)
	if got := writtenWith("meanwhile"); got != "second" || !readable("old") {
		t.Errorf("with a file that is no good: key %s", got)
	}

	// Without the first key, only what it encrypted is lost: it is gone indeed.
	configure(aesKeys("second"))
	eventually(t, "the first key is gone", func() (bool, error) { return !readable("left"), nil })
	if !readable("old") {
		t.Error("what the second key encrypted is lost")
	}
}

// What is wrong with a configuration is said with its line, before anything starts.
func TestEncryptionConfigsThatCannotBeUsed(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"
	for name, test := range map[string]struct{ content, want string }{
		"empty":   {"", "is empty"},
		"no YAML": {head + "resources:\n  - [\n", "line 4"},
		"unknown field": {
			head + "resources:\n- resources: [secrets]\n  providerz:\n  - identity: {}\n",
			`line 5: error while parsing file: error decoding`,
		},
		"another kind": {"apiVersion: v1\nkind: Secret\n", `no kind "Secret" is registered`},
		"no provider":  {head + "resources:\n- resources:\n  - secrets\n  providers: []\n", "line 6: "},
		"short key": {strings.Replace(aesKeys("first", "second"), base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", "second"))),
			"c2hvcnQ=", 1), "line 9: "},
		"no base64":     {strings.Replace(aesKeys("first"), "secret: ", "secret: '%%%'#", 1), "line 8"},
		"two providers": {head + "resources:\n- resources: [secrets]\n  providers:\n  - identity: {}\n    aesgcm: {keys: []}\n", "line 6: "},
		"unknown kinds": {head + "resources:\n- resources:\n  - configmaps\n  - Secrets\n  providers:\n  - identity: {}\n", "line 6: "},
		"second rule": {head +
			"resources:\n- resources: [secrets]\n  providers: [{identity: {}}]\n- resources: []\n  providers: [{identity: {}}]\n", "line 6: "},
		"fine":           {aesKeys("first"), ""},
		"fine with JSON": {`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[{"resources":["secrets"],"providers":[{"identity":{}}]}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "encryption.yaml")
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := CheckEncryption(file)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), "--encryption-provider-config "+file) || !strings.Contains(err.Error(), test.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	if err := CheckEncryption("/nonexistent"); err == nil ||
		!strings.Contains(err.Error(), "--encryption-provider-config: open /nonexistent") {
		t.Errorf("error %v", err)
	}
}
