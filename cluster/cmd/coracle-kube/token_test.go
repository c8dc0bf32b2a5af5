package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/pki"
)

// A token whose keys cannot be kept is deleted, also if the command is interrupted meanwhile.
func TestInterruptedInvitationLeavesNoToken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	bundle, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(bundle.CACert)
	if err != nil {
		t.Fatal(err)
	}
	info := corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		Data: map[string]string{
			"jws-kubeconfig-abcdef": "signed",
			"kubeconfig": fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n"+
				"    server: https://192.0.2.1\n    certificate-authority-data: %s\n", base64.StdEncoding.EncodeToString(ca)),
		},
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var deleted atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		secret := corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
		switch {
		case r.Method == http.MethodDelete:
			deleted.Store(strings.HasSuffix(r.URL.Path, "/secrets/bootstrap-token-abcdef"))
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
		case strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info"):
			_ = json.NewEncoder(w).Encode(info)
		case r.Method == http.MethodGet: // the token's Secret, which the keys are kept with
			interrupt()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(secret)
		}
	}))
	defer api.Close()
	cmd := tokenCommand(slog.New(slog.DiscardHandler))
	cmd.SetIn(strings.NewReader("abcdef.0123456789abcdef"))
	cmd.SetArgs([]string{"create", "--kubeconfig", kubeconfig(t, api.URL), "--token-stdin", "--ttl", "1h", "--control-plane-keys", dir})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(ctx); err == nil || ctx.Err() == nil {
		t.Errorf("the command was not interrupted: %v", err)
	} else if !deleted.Load() {
		t.Errorf("the token was left: %v", err)
	}
}
