package apiserver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/util/webhook"
	auditbuffered "k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"

	"github.com/coracle-project/coracle/cluster/health"
)

// AuditOptions say which requests are recorded, and where. The flags, the files and the defaults
// are upstream's.
type AuditOptions struct {
	// PolicyFile is an audit.k8s.io Policy. Without it nothing is recorded.
	PolicyFile string
	// LogPath is the file for events, - for standard output. It is set aside at MaxSize megabytes
	// (0: never), and what was set aside is removed after MaxAge days, and if there are more than
	// MaxBackups (0: no limit).
	LogPath                     string
	MaxAge, MaxBackups, MaxSize int
	// WebhookConfig is a kubeconfig of a server that gets events.
	WebhookConfig string
	// Health is told whether events can be written; it may be nil.
	Health *health.Part
}

const (
	policyFlag       = "--audit-policy-file"
	auditWebhookFlag = "--audit-webhook-config-file"
	// webhookBackoff is the pause after a webhook's first error, upstream's.
	webhookBackoff = 10 * time.Second
)

// webhookBatches is how events are sent to a webhook, upstream's default.
var webhookBatches = auditbuffered.BatchConfig{
	BufferSize: 10000, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
	ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: true,
}

// Enabled says whether anything is recorded.
func (o *AuditOptions) Enabled() bool { return o.PolicyFile != "" }

// Check says what is wrong with the options, without writing anything.
func (o *AuditOptions) Check() error {
	if o.PolicyFile == "" {
		switch {
		case o.LogPath != "":
			return errors.New("--audit-log-path records nothing without " + policyFlag)
		case o.WebhookConfig != "":
			return errors.New(auditWebhookFlag + " sends nothing without " + policyFlag)
		}
		return nil
	}
	if o.LogPath == "" && o.WebhookConfig == "" {
		return errors.New(policyFlag + " records nothing without --audit-log-path or " + auditWebhookFlag)
	}
	for flag, value := range map[string]int{"maxage": o.MaxAge, "maxbackup": o.MaxBackups, "maxsize": o.MaxSize} {
		if value < 0 {
			return fmt.Errorf("--audit-log-%s %d is below 0, which is without a limit", flag, value)
		}
	}
	if info, err := os.Stat(o.LogPath); err == nil && info.IsDir() {
		return fmt.Errorf("--audit-log-path %s is a directory; name a file in it", o.LogPath)
	}
	if _, err := o.policy(); err != nil {
		return err
	}
	_, err := o.webhook()
	return err
}

// policy reads the policy file. Unknown fields are errors: upstream ignores them, and a misspelt
// level or omission would record what was to be left out.
func (o *AuditOptions) policy() (*auditinternal.Policy, error) {
	data, err := os.ReadFile(o.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", policyFlag, err)
	}
	strict := serializer.NewCodecFactory(audit.Scheme, serializer.EnableStrict).UniversalDecoder()
	if _, _, err := strict.Decode(data, nil, &auditinternal.Policy{}); err != nil {
		return nil, inFile(policyFlag, o.PolicyFile, data, err)
	}
	policy, err := auditpolicy.LoadPolicyFromBytes(data)
	if err != nil {
		return nil, inFile(policyFlag, o.PolicyFile, data, err)
	}
	return policy, nil
}

func (o *AuditOptions) webhook() (audit.Backend, error) {
	if o.WebhookConfig == "" {
		return nil, nil
	}
	backend, err := auditwebhook.NewBackend(o.WebhookConfig, auditv1.SchemeGroupVersion,
		webhook.DefaultRetryBackoffWithInitialDelay(webhookBackoff), nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", auditWebhookFlag, o.WebhookConfig, err)
	}
	return auditbuffered.NewBackend(backend, webhookBatches), nil
}

// audit has the server record requests, if it is to.
func (b *build) audit() error {
	o := &b.options.Audit
	if !o.Enabled() {
		return nil
	}
	policy, err := o.policy()
	if err != nil {
		return err
	}
	var backends []audit.Backend
	if o.LogPath != "" {
		file, err := o.open()
		if err != nil {
			return fmt.Errorf("--audit-log-path %s cannot be written: %w", o.LogPath, err)
		}
		backends = append(backends, auditlog.NewBackend(&eventLog{path: o.LogPath, out: file, health: o.Health, log: b.options.Log},
			auditlog.FormatJson, auditv1.SchemeGroupVersion))
	}
	sent, err := o.webhook()
	if err != nil {
		return err
	}
	if sent != nil {
		backends = append(backends, sent)
	}
	o.Health.Works("requests are recorded by " + o.PolicyFile)
	b.config.AuditPolicyRuleEvaluator, b.config.AuditBackend = auditpolicy.NewPolicyRuleEvaluator(policy), audit.Union(backends...)
	return nil
}

// open opens the log, which is for root alone: events may have Secrets in them.
func (o *AuditOptions) open() (io.Writer, error) {
	if o.LogPath == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.LogPath), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(o.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() { // one that was there may be open to others
		err = file.Chmod(0o600)
	}
	if err == nil && o.MaxSize == 0 {
		return file, nil
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return &lumberjack.Logger{Filename: o.LogPath, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxSize}, nil
}

// eventLog is a log of events that may fail. It says so once, and requests go on; upstream would
// log each event that is lost, most often on the disk that is full.
type eventLog struct {
	path   string
	out    io.Writer
	health *health.Part
	log    *slog.Logger

	mu   sync.Mutex // held while writing: events are whole lines
	lost int        // since the log could be written
	cut  bool       // the last line is not whole
}

func (l *eventLog) Write(event []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := event
	if l.cut {
		line = append([]byte{'\n'}, event...)
	}
	n, err := l.out.Write(line)
	if err != nil {
		l.cut = l.cut || n > 0
		if l.lost++; l.lost == 1 {
			l.log.Error("audit events are lost", "err", err)
			remedy := "see why " + l.path + " cannot be written"
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				remedy = "make room on the disk of " + l.path
			}
			l.health.Fails(fmt.Errorf("events are lost: %w; %s", err, remedy))
		}
		return len(event), nil
	}
	l.cut = false
	if l.lost > 0 {
		l.log.Warn("audit events are written again", "path", l.path, "lost", l.lost)
		l.health.Works(fmt.Sprintf("events are written to %s again, %d were lost", l.path, l.lost))
		l.lost = 0
	}
	return len(event), nil
}
