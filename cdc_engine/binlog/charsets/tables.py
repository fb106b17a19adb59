"""Lists the characters that Python's codecs lack: complete one-byte charsets, and additions to eucjpms, ujis and big5.

The characters are those to which a server converts the bytes (CONVERT … USING utf8mb4). tests/binlog/charsets compares the tables with real
servers. U+FFFE marks a byte that the charset does not define, as in Python's charmap codecs.
"""
# ruff: noqa: RUF001 - characters that look alike are the point

from __future__ import annotations

ASCII = "".join(map(chr, range(0x80)))
CONTROLS = "".join(map(chr, range(0x80, 0xA0)))
UNDEFINED = "\ufffe"

# Charset → its 256 characters, indexed by byte
ONE_BYTE: dict[str, str] = {
    "armscii8": ASCII
    + CONTROLS
    + ("\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"),
    "dec8": ASCII
    + CONTROLS
    + (
        "\xa0¡¢£\ufffe¥\ufffe§¤©ª«\ufffe\ufffe\ufffe\ufffe°±²³\ufffeµ¶·\ufffe¹º»¼½\ufffe¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ"
        "\ufffeÑÒÓÔÕÖŒØÙÚÛÜŸ\ufffeßàáâãäåæçèéêëìíîï\ufffeñòóôõöœøùúûüÿ\ufffe\ufffe"
    ),
    "geostd8": ASCII
    + (
        "€\ufffe‚\ufffe„…†‡\ufffe‰\ufffe‹\ufffe\ufffe\ufffe\ufffe\ufffe‘’“”•–—\ufffe\ufffe\ufffe›\ufffe\ufffe\ufffe\ufffe\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯"
        "°±²³´µ¶·¸¹º»¼½¾¿აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწ"
        "ჭხჴჯჰჵ\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe\ufffe№\ufffe\ufffe"
    ),
    "hp8": ASCII
    + CONTROLS
    + ("\xa0ÀÂÈÊËÎÏ´ˋˆ¨˜ÙÛ₤¯Ýý°ÇçÑñ¡¿¤£¥§ƒ¢âêôûáéóúàèòùäëöüÅîØÆåíøæÄìÖÜÉïßÔÁÃãÐðÍÌÓÒÕõŠšÚŸÿÞþ·µ¶¾—¼½ªº«■»±\ufffe"),
    "keybcs2": ASCII
    + (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»"
        "░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
        "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    ),
}
_SWE7: dict[str, str | int | None] = {
    "@": "É",
    "[": "Ä",
    "\\": "Ö",
    "]": "Å",
    "^": "Ü",
    "`": "é",
    "{": "ä",
    "|": "ö",
    "}": "å",
    "~": "ü",
    "\x7f": UNDEFINED,
}
ONE_BYTE["swe7"] = ASCII.translate(str.maketrans(_SWE7)) + UNDEFINED * 0x80

# A run is a series of byte sequences that are consecutive numbers. First byte sequence of a run, in hexadecimal → the characters of the
# run.
BIG5_RUNS = {"f9d6": "碁銹裏墻恒粧嫺"}
EUCJPMS_RUNS = {
    "8fa2b7": "～",
    "8fa2c3": "￤",
    "8ff3f3": "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ",
    "8ff4a1": (
        "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫櫢淸淲瀨凞猪甁"
        "皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑"
    ),
    "ada1": "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
    "adc0": "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
    "addf": "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
}
# Private-use characters of ujis and eucjpms. Each lead byte begins 94 characters of two bytes. The byte 0x8F followed by a lead byte begins
# 94 characters of three bytes.
PRIVATE_LEADS = range(0xF5, 0xFF)
PRIVATE_TWO, PRIVATE_THREE = 0xE000, 0xE3AC


def runs(given: dict[str, str]) -> dict[bytes, str]:
    """Expands runs into a map of byte sequence → character. `given`: first byte sequence of a run, in hexadecimal → its characters."""
    return {
        (int(first, 16) + index).to_bytes(len(first) // 2): character
        for first, characters in given.items()
        for index, character in enumerate(characters)
    }


def private() -> dict[bytes, str]:
    """Returns a map of byte sequence → private-use character of ujis and eucjpms."""
    codes = [(lead, trail) for lead in PRIVATE_LEADS for trail in range(0xA1, 0xFF)]
    two = {bytes(code): chr(PRIVATE_TWO + index) for index, code in enumerate(codes)}
    return two | {bytes([0x8F, *code]): chr(PRIVATE_THREE + index) for index, code in enumerate(codes)}


BEYOND_PYTHON: dict[str, dict[bytes, str]] = {
    "big5": runs(BIG5_RUNS),
    "eucjpms": runs(EUCJPMS_RUNS) | private(),
    "ujis": private(),
}
