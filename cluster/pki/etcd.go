package pki

import "path/filepath"

// EtcdFiles names the files of one of several members of etcd.
type EtcdFiles struct {
	// CACert is the certificate of an authority that signs nothing but the certificates of members:
	// a member may read and write everything. Pair is this machine's certificate and key.
	CACert, Pair string
}

// EtcdFiles returns the names; EtcdPeer makes the files.
func (b *Bundle) EtcdFiles() EtcdFiles {
	return EtcdFiles{CACert: filepath.Join(b.Dir, "etcd-ca.crt"), Pair: filepath.Join(b.Dir, "etcd-peer.pem")}
}

// EtcdPeer makes the credentials of this machine's member of etcd, whose peers reach it under
// hosts.
func (b *Bundle) EtcdPeer(hosts []string) (EtcdFiles, error) {
	f := b.EtcdFiles()
	issuer, err := ensureAuthority("coracle-etcd-ca", filepath.Join(b.Dir, etcdAuthority), f.CACert, b.made, Rotation{}, b.log)
	if err != nil {
		return f, err
	}
	return f, b.pair(issuer, f.Pair, subject{name: "etcd-peer", hosts: hosts, peer: true})
}

const etcdAuthority = "etcd-ca.pem"
