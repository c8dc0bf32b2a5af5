package main

import (
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

// leastQuota leaves room for what every cluster has.
const leastQuota = 16 << 20

// protection are the flags for what is recorded of requests, and how objects are stored. Names and
// defaults are upstream's.
type protection struct {
	audit      apiserver.AuditOptions
	encryption string
	quota      int64
}

func (p *protection) define(f *pflag.FlagSet) {
	p.quota = etcd.DefaultQuota
	f.StringVar(&p.encryption, "encryption-provider-config", "",
		"`FILE` with an EncryptionConfiguration: how objects are encrypted in etcd; changes take effect within a minute (default: not encrypted)")
	f.StringVar(&p.audit.PolicyFile, "audit-policy-file", "", "`FILE` with an audit Policy: which requests are recorded (default: none)")
	f.StringVar(&p.audit.LogPath, "audit-log-path", "", "`FILE` for what is recorded, - for standard output")
	f.IntVar(&p.audit.MaxAge, "audit-log-maxage", 366, "after how many days a log that was set aside is removed; 0 for never")
	f.IntVar(&p.audit.MaxBackups, "audit-log-maxbackup", 100, "how many logs that were set aside are kept; 0 for all")
	f.IntVar(&p.audit.MaxSize, "audit-log-maxsize", 100, "at how many megabytes the log is set aside; 0 for never")
	f.StringVar(&p.audit.WebhookConfig, "audit-webhook-config-file", "", "kubeconfig `FILE` of a server that gets what is recorded")
	f.Func("etcd-quota", "how large the built-in etcd's database may get, a `SIZE` such as 8Gi (default 4Gi)", func(text string) error {
		size, err := resource.ParseQuantity(text)
		if err == nil && size.Value() < leastQuota {
			err = errors.New("a cluster needs at least 16Mi")
		}
		p.quota = size.Value()
		return err
	})
}

// check says what is wrong with the files, if anything.
func (p *protection) check(externalEtcd bool) error {
	if externalEtcd && p.quota != 0 && p.quota != etcd.DefaultQuota {
		return errors.New("--etcd-quota is for the built-in etcd, and --etcd-servers names another")
	}
	errs := []error{p.audit.Check()}
	if p.encryption != "" {
		errs = append(errs, apiserver.CheckEncryption(p.encryption))
	}
	return errors.Join(errs...)
}
