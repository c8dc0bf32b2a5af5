// Package clusterinfo publishes what a machine has to know of a cluster to join it.
//
// The ConfigMap kube-public/cluster-info is kubeadm's: a kubeconfig with the server's address and
// the authority, and without credentials. Anyone may read it; the bootstrap signer adds a signature
// for each token. The ConfigMap kube-system/coracle-agent has settings of the cluster that agents
// of ours follow. Tokens and nodes may read it.
package clusterinfo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/yaml"
)

const (
	// AgentConfigMap is the name of the ConfigMap in kube-system with Settings.
	AgentConfigMap = "coracle-agent"
	settingsKey    = "settings.json"
	authorityKey   = "authority.pem"
	// settingsVersion is that of the format. A field that older agents may ignore does not change
	// it.
	settingsVersion = 1
	// encryptedVersion is that of settings with EncryptedPodNetwork. An older agent would take a value
	// of PodNetwork that it does not know for auto, and send packets unencrypted.
	encryptedVersion = 2
	// longestSettings and longestAuthority bound what is read.
	longestSettings  = 64 << 10
	longestAuthority = 64 << 10
	// mostServers bounds the addresses of a DNS; a pod's resolv.conf has three.
	mostServers = 16
)

// EncryptedPodNetwork is the PodNetwork with which packets between nodes' pods are encrypted.
const EncryptedPodNetwork = "wireguard"

// Settings are those of the cluster that each node follows.
type Settings struct {
	Version int `json:"version"`
	// Release is that of Coracle on the control-plane node that has published them, "" for one that
	// is not known.
	Release string `json:"release,omitempty"`
	// ServiceCIDRs are the networks of Services.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// PodCIDRs are the networks of pods, of which the cluster gives each node a part; empty leaves
	// the addresses to nodes.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// PodNetwork is how pods are connected: auto, none, cni, or wireguard. Empty is auto.
	PodNetwork string `json:"podNetwork,omitempty"`
	// ClusterDNS are the addresses of the cluster's DNS, and ClusterDomain the domain it answers
	// for. NodeDNS is whether each node answers there itself.
	ClusterDNS    []netip.Addr `json:"clusterDNS,omitempty"`
	ClusterDomain string       `json:"clusterDomain,omitempty"`
	NodeDNS       bool         `json:"nodeDNS,omitempty"`
	// StubDomains are domains with servers of their own: DOMAIN=ADDRESS.
	StubDomains []string `json:"stubDomains,omitempty"`
	// ServiceProxy, ExternalIPs and NetworkPolicies are whether nodes route connections to
	// Services, also to externalIPs, and enforce NetworkPolicies.
	ServiceProxy    bool `json:"serviceProxy,omitempty"`
	ExternalIPs     bool `json:"externalIPs,omitempty"`
	NetworkPolicies bool `json:"networkPolicies,omitempty"`
	// LoadBalancerCIDRs are the ranges that nodes announce.
	LoadBalancerCIDRs []string `json:"loadBalancerCIDRs,omitempty"`
}

// Publish writes both ConfigMaps. ca is the authority, PEM, and followed the same with what the
// authority before certifies, for agents that trust that one. It leaves signatures and keys of
// others alone.
func Publish(ctx context.Context, kube kubernetes.Interface, server string, ca, followed []byte, s Settings) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cluster-info: %w", err)
	}
	err = publish(ctx, kube, metav1.NamespacePublic, bootstrapapi.ConfigMapClusterInfo, bootstrapapi.KubeConfigKey, string(text))
	if err != nil {
		return err
	}
	// Before the settings: an agent that reads these follows it.
	if err := publish(ctx, kube, metav1.NamespaceSystem, AgentConfigMap, authorityKey, string(followed)); err != nil {
		return err
	}
	s.Version = settingsVersion
	if s.PodNetwork == EncryptedPodNetwork {
		s.Version = encryptedVersion
	}
	settings, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return publish(ctx, kube, metav1.NamespaceSystem, AgentConfigMap, settingsKey, string(settings))
}

func publish(ctx context.Context, kube kubernetes.Interface, namespace, name, key, value string) error {
	objects := kube.CoreV1().ConfigMaps(namespace)
	err := retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) },
		func() error {
			have, err := objects.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = objects.Create(ctx, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: value},
				}, metav1.CreateOptions{})
				return err
			}
			if err != nil || have.Data[key] == value {
				return err
			}
			have.Data = maps.Clone(have.Data)
			if have.Data == nil {
				have.Data = map[string]string{}
			}
			have.Data[key] = value
			_, err = objects.Update(ctx, have, metav1.UpdateOptions{})
			return err
		})
	if err != nil {
		return fmt.Errorf("publish ConfigMap %s/%s: %w", namespace, name, err)
	}
	return nil
}

// ErrNone is the error of Published for a cluster that publishes nothing.
var ErrNone = errors.New("the API server listens for this machine only, so no other one can join: give 'coracle up' a --bind-address that " +
	"other machines reach")

// Published returns the server's address and the authority in cluster-info.
func Published(ctx context.Context, kube kubernetes.Interface) (server string, ca []byte, err error) {
	at := "ConfigMap " + metav1.NamespacePublic + "/" + bootstrapapi.ConfigMapClusterInfo
	info, err := kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil, ErrNone
	}
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", at, err)
	}
	config, err := clientcmd.Load([]byte(info.Data[bootstrapapi.KubeConfigKey]))
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", at, err)
	}
	for _, cluster := range config.Clusters {
		return cluster.Server, cluster.CertificateAuthorityData, nil
	}
	return "", nil, fmt.Errorf("%s names no cluster", at)
}

// signLimit bounds how long AwaitSigned waits. Another node has the controllers of a lost leader
// within some 20 seconds.
const signLimit = 30 * time.Second

// AwaitSigned waits until cluster-info has a signature of a token, without which no machine can use
// it.
func AwaitSigned(ctx context.Context, kube kubernetes.Interface, id string) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, signLimit, true, func(ctx context.Context) (bool, error) {
		info, err := kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		return err == nil && info.Data[bootstrapapi.JWSSignatureKeyPrefix+id] != "", err
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("cluster-info was not signed with the token within %s: no controllers run; 'coracle status' says why", signLimit)
	}
	return err
}

// ReadSettings returns the cluster's Settings, and whether there are any: another control plane has
// none. An API server that has not loaded its roles yet answers that reading them is forbidden.
func ReadSettings(ctx context.Context, kube kubernetes.Interface) (Settings, bool, error) {
	at := "ConfigMap " + metav1.NamespaceSystem + "/" + AgentConfigMap
	have, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, AgentConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Settings{}, false, nil
	}
	if err != nil {
		return Settings{}, false, fmt.Errorf("read %s: %w", at, err)
	}
	text := have.Data[settingsKey]
	if len(text) > longestSettings {
		return Settings{}, false, fmt.Errorf("%s: %s has %d bytes, and may have %d", at, settingsKey, len(text), longestSettings)
	}
	var s Settings
	in := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := in.Decode(&s); err != nil {
		return Settings{}, false, fmt.Errorf("%s: %s cannot be read: %w", at, settingsKey, err)
	}
	if _, err := in.Token(); err != io.EOF {
		return Settings{}, false, fmt.Errorf("%s: %s has more than settings", at, settingsKey)
	}
	if err := s.CheckVersion(); err != nil {
		return Settings{}, false, fmt.Errorf("%s: %w", at, err)
	}
	return s, true, nil
}

const (
	// kubeletConfigMap is where kubeadm keeps the configuration of kubelets, in kube-system.
	kubeletConfigMap = "kubelet-config"
	kubeletConfigKey = "kubelet"
)

// ReadKubelets returns what a control plane of upstream tells all kubelets, by kubeadm's
// convention, as far as nodes of ours follow it: the cluster's DNS. Its Settings have no version. A
// control plane that does not tell has no DNS for pods of these nodes.
func ReadKubelets(ctx context.Context, kube kubernetes.Interface) (Settings, error) {
	at := "ConfigMap " + metav1.NamespaceSystem + "/" + kubeletConfigMap
	have, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kubeletConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return Settings{}, nil
	}
	if err != nil {
		return Settings{}, fmt.Errorf("read %s: %w", at, err)
	}
	text := have.Data[kubeletConfigKey]
	if len(text) > longestSettings {
		return Settings{}, fmt.Errorf("%s: %s has %d bytes, and may have %d", at, kubeletConfigKey, len(text), longestSettings)
	}
	var s struct {
		ClusterDNS    []netip.Addr `json:"clusterDNS"`
		ClusterDomain string       `json:"clusterDomain"`
	}
	if err := yaml.Unmarshal([]byte(text), &s); err != nil {
		return Settings{}, fmt.Errorf("%s: %s cannot be read: %w", at, kubeletConfigKey, err)
	}
	if len(s.ClusterDNS) > mostServers {
		return Settings{}, fmt.Errorf("%s: clusterDNS has %d addresses, and may have %d", at, len(s.ClusterDNS), mostServers)
	}
	if s.ClusterDomain != "" {
		if wrong := validation.IsDNS1123Subdomain(s.ClusterDomain); len(wrong) > 0 {
			return Settings{}, fmt.Errorf("%s: clusterDomain %q is no domain: %s", at, s.ClusterDomain, wrong[0])
		}
	}
	return Settings{ClusterDNS: s.ClusterDNS, ClusterDomain: s.ClusterDomain}, nil
}

// Authority returns the followed authority in the ConfigMap of agents, nil if there is none.
func Authority(have *corev1.ConfigMap) ([]byte, error) {
	text := have.Data[authorityKey]
	if len(text) > longestAuthority {
		return nil, fmt.Errorf("ConfigMap %s/%s: %s has %d bytes, and may have %d", have.Namespace, have.Name, authorityKey, len(text),
			longestAuthority)
	}
	return []byte(text), nil
}

// CheckVersion returns an error if this release does not read settings of this version.
func (s Settings) CheckVersion() error {
	if s.Version != settingsVersion && s.Version != encryptedVersion {
		return fmt.Errorf("settings have version %d, and this agent reads versions %d and %d: install the release of the control plane",
			s.Version, settingsVersion, encryptedVersion)
	}
	return nil
}
