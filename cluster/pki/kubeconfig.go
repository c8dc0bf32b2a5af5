package pki

import (
	"encoding/pem"
	"fmt"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const contextName = "coracle"

// Kubeconfig makes sure that the file at path (mode 0600) lets its reader act as user in groups at
// this cluster's API server. A certificate inside that is still good is kept.
func (b *Bundle) Kubeconfig(path, user string, groups ...string) error {
	if u, err := url.Parse(b.server); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("pki: %q is no URL of an API server, which looks like https://10.0.0.1:6443", b.server)
	}
	data, err := read(path)
	if err != nil {
		return err
	}
	ca := b.issuer.trusted()
	s := subject{name: user, groups: groups}
	if old, err := clientcmd.Load(data); err == nil && data != nil && b.stillGood(old, ca, s) {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	cert, err := sign(s.template(b.made), b.issuer.cert, key.Public(), b.issuer.key)
	if err != nil {
		return err
	}
	der, err := marshalKey(key)
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters[contextName] = &api.Cluster{Server: b.server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &api.AuthInfo{
		ClientCertificateData: append(encodeCertificate(cert.Raw), b.issuer.chain()...),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}),
	}
	config.Contexts[contextName] = &api.Context{Cluster: contextName, AuthInfo: user}
	config.CurrentContext = contextName
	out, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("pki: kubeconfig of %s: %w", user, err)
	}
	return Replace(path, out, 0o600)
}

// stillGood says whether config has the cluster's address and authority and a good certificate of
// s.
func (b *Bundle) stillGood(config *api.Config, ca []byte, s subject) bool {
	cluster, auth := config.Clusters[contextName], config.AuthInfos[s.name]
	if cluster == nil || auth == nil || cluster.Server != b.server || string(cluster.CertificateAuthorityData) != string(ca) {
		return false
	}
	cert, key := decodePair(append(append([]byte(nil), auth.ClientCertificateData...), auth.ClientKeyData...))
	now := b.made
	return cert != nil && key != nil && matches(cert, key) && current(cert, now) &&
		cert.CheckSignatureFrom(b.issuer.cert) == nil && !madeAt(cert).Before(b.again) && sameSubject(cert, s.template(now))
}
