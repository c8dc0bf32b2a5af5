// Package token makes, lists and deletes bootstrap tokens, with which machines join a cluster.
//
// A token is ID.SECRET, and is kept as upstream and kubeadm keep it: a Secret of the type
// bootstrap.kubernetes.io/token in kube-system, named by the ID. It signs cluster-info, by which a
// machine recognizes the cluster, and lets the machine ask for a node's certificate.
package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
	"k8s.io/cluster-bootstrap/util/secrets"
)

// JoinersGroup is the group that tokens for nodes have: kubeadm's, so that its clients work, too.
const JoinersGroup = "system:bootstrappers:kubeadm:default-node-token"

// longestDescription limits Description, in bytes.
const longestDescription = 1024

// Info is what can be told of a token.
type Info struct {
	ID string `json:"id"`
	// Expires is when the token ends; the zero time if it never does.
	Expires     time.Time `json:"expires,omitzero"`
	Description string    `json:"description,omitempty"`
	Groups      []string  `json:"groups,omitempty"`
}

// New is what a token is made of.
type New struct {
	// Token is ID.SECRET; one is generated if it is empty.
	Token string
	// TTL is how long it is valid, 0 for no end.
	TTL         time.Duration
	Description string
}

// Create makes a token and returns it.
func Create(ctx context.Context, kube kubernetes.Interface, n New) (string, Info, error) {
	if n.TTL < 0 {
		return "", Info{}, fmt.Errorf("a token cannot be valid for %s: choose a time above 0, or 0 for no end", n.TTL)
	}
	if len(n.Description) > longestDescription {
		return "", Info{}, fmt.Errorf("the description of a token has %d bytes, and may have %d", len(n.Description), longestDescription)
	}
	text := n.Token
	if text == "" {
		var err error
		if text, err = util.GenerateBootstrapToken(); err != nil {
			return "", Info{}, err
		}
	}
	id, secret, err := Parse(text)
	if err != nil {
		return "", Info{}, err
	}
	info := Info{ID: id, Description: n.Description, Groups: []string{JoinersGroup}}
	data := map[string]string{
		bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret,
		bootstrapapi.BootstrapTokenUsageAuthentication: "true", bootstrapapi.BootstrapTokenUsageSigningKey: "true",
		bootstrapapi.BootstrapTokenExtraGroupsKey: JoinersGroup,
	}
	if n.Description != "" {
		data[bootstrapapi.BootstrapTokenDescriptionKey] = n.Description
	}
	if n.TTL > 0 {
		info.Expires = time.Now().Add(n.TTL).UTC().Truncate(time.Second)
		data[bootstrapapi.BootstrapTokenExpirationKey] = info.Expires.Format(time.RFC3339)
	}
	_, err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: util.BootstrapTokenSecretName(id)},
		Type:       bootstrapapi.SecretTypeBootstrapToken, StringData: data,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return "", Info{}, fmt.Errorf("a token with the ID %s exists: delete it first, or omit it to have one generated", id)
	}
	if err != nil {
		return "", Info{}, fmt.Errorf("create token %s: %w", id, err)
	}
	return text, info, nil
}

// List returns all tokens, the next to expire first.
func List(ctx context.Context, kube kubernetes.Interface) ([]Info, error) {
	list, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	all := []Info{}
	for i := range list.Items {
		s := &list.Items[i]
		if s.Type != bootstrapapi.SecretTypeBootstrapToken { // a fake API has no such selector
			continue
		}
		info := Info{
			ID:          strings.TrimPrefix(s.Name, bootstrapapi.BootstrapTokenSecretPrefix),
			Description: secrets.GetData(s, bootstrapapi.BootstrapTokenDescriptionKey),
		}
		if groups := secrets.GetData(s, bootstrapapi.BootstrapTokenExtraGroupsKey); groups != "" {
			info.Groups = strings.Split(groups, ",")
		}
		if text := secrets.GetData(s, bootstrapapi.BootstrapTokenExpirationKey); text != "" {
			if info.Expires, err = time.Parse(time.RFC3339, text); err != nil {
				info.Expires = time.Unix(0, 0).UTC() // one that cannot be read counts as past
			}
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b Info) int {
		switch {
		case a.Expires.Equal(b.Expires):
			return strings.Compare(a.ID, b.ID)
		case a.Expires.IsZero():
			return 1
		case b.Expires.IsZero():
			return -1
		}
		return a.Expires.Compare(b.Expires)
	})
	return all, nil
}

// Delete deletes a token by its ID, or by the whole token.
func Delete(ctx context.Context, kube kubernetes.Interface, idOrToken string) error {
	id, _, _ := strings.Cut(idOrToken, ".")
	if !util.IsValidBootstrapTokenID(id) {
		// It may be a whole token without its dot, so it is not quoted.
		return errors.New("this is not a token ID, which has 6 of the characters a-z and 0-9")
	}
	err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, util.BootstrapTokenSecretName(id), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no token has the ID %s: it was deleted, or has expired", id)
	}
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}

// longest bounds what Read reads, in bytes.
const longest = 1 << 10

// Read reads a token. Its errors do not quote it.
func Read(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, longest))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	text = bytes.TrimSpace(text)
	_, _, err = Parse(string(text))
	return string(text), err
}

// Parse splits a token into its ID and its secret. Its errors do not quote the secret.
func Parse(text string) (id, secret string, err error) {
	if !util.IsValidBootstrapToken(text) {
		return "", "", errors.New("the token is not ID.SECRET, 6 and 16 of the characters a-z and 0-9, such as abcdef.0123456789abcdef")
	}
	id, secret, _ = strings.Cut(text, ".")
	return id, secret, nil
}
