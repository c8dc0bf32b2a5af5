package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/util/consistency"

	"github.com/coracle-project/coracle/cluster/apiserver/direct"
)

func TestErrorsThatNeedNoAttentionAreForDebugging(t *testing.T) {
	unseen := consistency.ConsistencyError{ReadRV: "7", WroteRV: "8", GroupResource: schema.GroupResource{Resource: "pods"}}
	err := errors.New("read tcp 127.0.0.1:6443->127.0.0.1:1: use of closed network connection")
	for name, tc := range map[string]struct {
		log   func(l klog.Logger)
		level slog.Level
		want  string
	}{
		"a closed connection":      {func(l klog.Logger) { l.Error(err, "Error on socket receive") }, slog.LevelWarn, ""},
		"a closed connection, too": {func(l klog.Logger) { l.WithName("x").WithValues("a", 1).Error(err, "Error") }, slog.LevelWarn, ""},
		"who debugs":               {func(l klog.Logger) { l.Error(err, "Error on socket receive") }, slog.LevelDebug, "level=DEBUG"},
		"in the message": {func(l klog.Logger) {
			l.Error(nil, "failed to sync with latest state: context canceled")
		}, slog.LevelWarn, ""},
		"an informer after the end": {func(l klog.Logger) {
			utilruntime.HandleErrorWithContext(klog.NewContext(t.Context(), l), fmt.Errorf("read pods: %w", direct.ErrStopped), "Failed to watch")
		}, slog.LevelWarn, ""},
		"after a timeout": {func(l klog.Logger) { l.Error(nil, "Post-timeout activity") }, slog.LevelWarn, ""},
		"a controller that waits": {func(l klog.Logger) {
			l.Error(&unseen, "Error syncing StatefulSet, requeuing", "key", "default/db")
		}, slog.LevelWarn, ""},
		"anything else": {func(l klog.Logger) { l.Error(errors.New("disk full"), "Error") }, slog.LevelWarn, "level=ERROR"},
		"no error":      {func(l klog.Logger) { l.Error(nil, "Timeout or abort while handling") }, slog.LevelWarn, "level=ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			handler := upstreamLog{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tc.level})}
			tc.log(logr.FromSlogHandler(handler))
			if got := out.String(); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestFormattedErrorsAreReadToo(t *testing.T) {
	var out bytes.Buffer
	klog.SetSlogLogger(slog.New(upstreamLog{slog.NewTextHandler(&out, nil)}))
	defer klog.ClearLogger()
	klog.Errorf("failed to sync with latest state: %v", fmt.Errorf("list: %w", errors.New("context canceled")))
	if strings.Contains(out.String(), "failed to sync") { // others may write, too
		t.Error(out.String())
	}
}
