"""Puts the run page together: make_template.py OUT PAGE CSS COMMON_JS JS LIBRARY_JS LIBRARY_CSS LIBRARY_LICENSE

OUT is C++: a string with two places left, {{TITLE}} and {{DATA}}. What runs in the page is named by its hash in a
content security policy: an answer that came to be taken for HTML could still run nothing and ask for nothing.
"""
import base64
import hashlib
import re
import sys

out, *parts = sys.argv[1:]
page, css, common, script, library, library_css, license_text = (open(part, encoding='utf-8').read() for part in parts)
library = re.sub(r'\n//# sourceMappingURL=.*', '', library).replace('</script', '<\\/script')
library_css = re.sub(r'/\*# sourceMappingURL=.*?\*/', '', library_css)
script = '\n' + common + script


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


policy = ("default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
          + digest(library) + ' ' + digest(script))
for place, text in {
        '{{CSP}}': policy, '{{DYGRAPHS_CSS}}': library_css, '{{LICENSE}}': license_text.replace('--', '- -'),
        '{{DYGRAPHS_JS}}': library, '{{CSS}}': css, '\n{{JS}}': script}.items():
    assert page.count(place) == 1, place
    page = page.replace(place, text)
assert page.count('{{TITLE}}') == 1 and page.count('{{DATA}}') == 1
with open(out, 'w', encoding='utf-8') as f:
    for line in page.splitlines(keepends=True):
        f.write('"' + line.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n') + '"\n')
