package serviceaccount

import (
	"bytes"
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	upstream "k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
)

type tokens struct {
	set      *client.Set
	sign     upstream.TokenGenerator
	ca       rootca.Authority // may be nil
	accounts corelisters.ServiceAccountLister
	lister   corelisters.SecretLister
}

// NewTokens returns the controller of token Secrets; its keys are Secrets. Tokens are signed by
// sign, and ca, which may be nil, is put alongside them. It watches Secrets of that type only.
func NewTokens(set *client.Set, sign upstream.TokenGenerator, ca rootca.Authority) *frame.Controller {
	accounts := set.Informers.Core().V1().ServiceAccounts()
	secrets := coreinformers.NewFilteredSecretInformer(set.Kube, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		})
	c := &tokens{
		set: set, sign: sign, ca: ca,
		accounts: accounts.Lister(), lister: corelisters.NewSecretLister(secrets.GetIndexer()),
	}
	f := frame.New("serviceaccount-token", 5, set.Logger(), c.sync)
	f.Watch(accounts.Informer(), c.secretsOf)
	feed.Own(f, secrets, frame.Self)
	if ca != nil {
		ca.AddListener(rootca.Changed(func() {
			for _, key := range secrets.GetIndexer().ListKeys() {
				f.Add(key)
			}
		}))
	}
	return f
}

// secretsOf returns the keys of the token Secrets that name an account.
func (c *tokens) secretsOf(obj any) (keys []string) {
	account, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return nil
	}
	secrets, _ := c.lister.Secrets(account.Namespace).List(labels.Everything())
	for _, secret := range secrets {
		if secret.Annotations[corev1.ServiceAccountNameKey] == account.Name {
			keys = append(keys, secret.Namespace+"/"+secret.Name)
		}
	}
	return keys
}

func (c *tokens) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	secret, err := c.lister.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return c.dropReferences(ctx, namespace, name)
	}
	if err != nil {
		return err
	}
	accountName := secret.Annotations[corev1.ServiceAccountNameKey]
	if secret.Type != corev1.SecretTypeServiceAccountToken || accountName == "" {
		return nil
	}
	account, err := c.account(ctx, namespace, accountName, types.UID(secret.Annotations[corev1.ServiceAccountUIDKey]))
	if err != nil {
		return err
	}
	if account == nil {
		err := c.set.Kube.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &secret.UID},
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	return c.fill(ctx, account, secret)
}

// account returns the named account, nil if there is none with that UID (any, if it is empty).
func (c *tokens) account(ctx context.Context, namespace, name string, uid types.UID) (*corev1.ServiceAccount, error) {
	account, err := c.accounts.ServiceAccounts(namespace).Get(name)
	if err == nil && (uid == "" || account.UID == uid) {
		return account, nil
	}
	// Before something is deleted for want of it, ask.
	account, err = c.set.Kube.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if uid != "" && account.UID != uid {
		return nil, nil
	}
	return account, nil
}

// fill puts what is missing into a token Secret.
func (c *tokens) fill(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) error {
	var ca []byte
	if c.ca != nil {
		ca = c.ca.CurrentCABundleContent()
	}
	needsCA := len(ca) > 0 && !bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], ca)
	needsNamespace := len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0
	needsToken := len(secret.Data[corev1.ServiceAccountTokenKey]) == 0
	if !needsCA && !needsNamespace && !needsToken {
		return nil
	}
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if needsCA {
		secret.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	if needsNamespace {
		secret.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if needsToken {
		claims, private := upstream.LegacyClaims(*account, *secret)
		token, err := c.sign.GenerateToken(ctx, claims, private)
		if err != nil {
			return err
		}
		secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	secret.Annotations[corev1.ServiceAccountNameKey] = account.Name
	secret.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err := c.set.Kube.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // it changed: its event brings it back
		return nil
	}
	return err
}

// dropReferences removes a token Secret that is gone from the accounts that list it.
func (c *tokens) dropReferences(ctx context.Context, namespace, name string) error {
	accounts, err := c.accounts.ServiceAccounts(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	lists := func(ref corev1.ObjectReference) bool { return ref.Name == name }
	var errs []error
	for _, account := range accounts {
		if !slices.ContainsFunc(account.Secrets, lists) {
			continue
		}
		errs = append(errs, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			_, err := c.set.Kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) { // it is there again, or it has another type now
				return err
			}
			live, err := c.set.Kube.CoreV1().ServiceAccounts(namespace).Get(ctx, account.Name, metav1.GetOptions{})
			if err == nil && live.UID == account.UID && slices.ContainsFunc(live.Secrets, lists) {
				live.Secrets = slices.DeleteFunc(live.Secrets, lists)
				_, err = c.set.Kube.CoreV1().ServiceAccounts(namespace).Update(ctx, live, metav1.UpdateOptions{})
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}))
	}
	return errors.Join(errs...)
}
